"""Many clients with many directories in their caches: what they cost the server, and how long a recall takes.

A measurement: only that it works is checked.  The long variant is the one the documentation quotes."""
import json
import os

from suite import case


def measure(test, clients, directories, seconds):
    server = test.site.server()
    server.volume("many")
    program = os.path.join(test.build, "tests", "company", "clients")
    if not os.access(program, os.X_OK):
        raise AssertionError(f"no {program}: build with -Dtests=true")
    _, out, _ = test.site.run([program, server.address, "many", "--clients", str(clients), "--directories", str(directories),
                               "--changes", str(min(50, directories)), "--server-pid", str(server.process.pid)], seconds)
    found = json.loads(out)
    test.say(out.strip())
    test.say(f"{clients} clients with {directories} directories each: the server has {found['server_kib'][2] // 1024} MiB "
             f"({found['server_bytes_a_lease']:.0f} bytes a lease), a change recalled from one client takes {found['recall_one_ms'][0]:.2f} ms, "
             f"from all {found['recall_all_ms'][0]:.2f} ms (at most {found['recall_all_ms'][1]:.1f}); "
             f"{found['answered_locally']:.0%} of look-ups need no call")
    return found


@case(seconds=120)
def a_few_clients_learn_a_few_directories_and_see_every_change(test):
    found = measure(test, 10, 200, 100)
    test.true(found["recall_all_ms"][1] < 5000, f"a recall from ten clients that are awake takes no lease time: {found['recall_all_ms']}")
    test.true(found["answered_locally"] > 0.5, f"in company, too, directories are kept: {found['answered_locally']:.0%} of look-ups need no call")


@case(seconds=600, long=True)
def two_hundred_clients_with_ten_thousand_directories_each(test):
    found = measure(test, 200, 10_000, 3000)
    test.true(found["recall_all_ms"][1] < 10_000, f"a recall from all takes no lease time: {found['recall_all_ms']}")
