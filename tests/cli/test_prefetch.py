"""epochfs prefetch."""
import itertools
import json
import os
import random
import signal
import subprocess
import tempfile
import threading

import pytest

from control import Control, socket_path, tcp_server
from waiting import TookTooLong, wait_until

LARGE = 2 << 20     # a file of its own in the cache: what is fetched can be counted


@pytest.fixture(scope="module")
def server(site):
    return tcp_server(site, "prefetch")


class World:
    def __init__(self, site, server, name, options):
        server.volume(name)
        self.site, self.server = site, server
        self.mount = server.mount(name, name, options=options)
        self.point = self.mount.point
        self.processes = []

    def fill(self, files, size=LARGE):
        names = [f"file{i:04}" for i in range(files)]
        for name in names:
            with open(os.path.join(self.point, name), "wb") as f:
                f.write(os.urandom(size))
        fd = os.open(self.point, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        random.Random(1).shuffle(names)
        self.mount.remount()
        return names

    def prefetch(self, names, *words, data=None):
        """In the background, with an order from standard input."""
        with tempfile.TemporaryFile() as order:
            order.write(data if data is not None else "".join(name + "\n" for name in names).encode())
            order.seek(0)
            process = subprocess.Popen([self.site.binary, "prefetch", self.point, "--order", "-", *words], stdin=order,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.site.keeper.process(process.pid)
        self.processes.append(process)
        return process

    def status(self):
        return json.loads(self.server.cli("status", self.point, "--json")[1])

    def order(self):
        """What the mount says of the only order there is, once it is told."""
        orders = self.status()["orders"]
        return orders[0] if orders else None

    def quiet(self, files):
        """The order once it is told in full, and nothing is on its way any more."""
        order = None

        def still():
            nonlocal order
            order = self.order()
            return order and order["files"] == files and order["ready"] + order["failed"] >= order["ahead_files"] and \
                self.order() == order and order
        try:
            return wait_until(still, 30, "the window to be filled")
        except TookTooLong as e:
            self.mount.print_stacks()
            ended = [(p.returncode, p.communicate()) for p in self.processes if p.poll() is not None]
            raise AssertionError(f"the window of {files} files is not filled: {order}; ended: {ended}") from e

    def read(self, *names):
        for name in names:
            with open(os.path.join(self.point, name), "rb") as f:
                while f.read(1 << 20):
                    pass

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.mount.discard()


NUMBERS = itertools.count()


@pytest.fixture
def world(site, server):
    made = []

    def make(*options, cache=True):
        name = f"ordered{next(NUMBERS)}"
        cached = ["--cache-dir", site.path(f"{name}-cache")] if cache else []
        made.append(World(site, server, name, [*cached, *options]))
        return made[-1]
    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("options", [[], ["--ro"]])
def test_a_bounded_window_is_kept_ahead_of_the_reader(world, options):
    w = world()
    names = w.fill(20)
    w.mount.umount()
    w.mount.options += options
    w.mount.start()
    w.prefetch(names, "--window", "8MiB")
    order = w.quiet(20)
    assert (order["ahead_files"], order["ahead_bytes"], order["ready"]) == (4, 8 << 20, 4)
    cached = w.status()["cache"][0]["bytes"]
    assert 8 << 20 <= cached < 10 << 20
    for done in range(1, 10):
        w.read(names[done - 1])
        wait_until(lambda count=4 + done: w.order()["ready"] >= count, 30, "the next one")
        order = w.quiet(20)
        assert (order["read"], order["ready"], order["ahead_bytes"]) == (done, 4 + done, 8 << 20)
        # What the reader itself brought is of the order, too; nothing else was fetched.
        assert w.status()["cache"][0]["bytes"] < (4 + done + 1) * LARGE


def test_what_was_fetched_ahead_is_read_from_the_cache(world):
    w = world()
    names = w.fill(10)
    w.prefetch(names, "--window", "32MiB")
    w.quiet(10)
    before = w.status()["figures"]
    w.read(*names)
    after = w.status()["figures"]
    assert after["cache_misses"] == before["cache_misses"]
    assert after["read_memory_fetched_bytes"] == before["read_memory_fetched_bytes"]


def test_small_files_come_with_their_packs(world):
    w = world()
    names = w.fill(200, 10000)
    w.prefetch(names)
    w.quiet(200)
    before = w.status()["figures"]["cache_misses"]
    w.read(*names)
    assert w.status()["figures"]["cache_misses"] == before


def test_where_the_cache_has_no_room_for_packs_small_files_go_to_memory(world):
    """Each file is from another pack: to let all these in, one after the other, would be forty times the data."""
    w = world("--cache-size", "16MiB", "--cache-memory", "16MiB")
    names = w.fill(600, 100000)     # 15 packs, of which the cache holds three
    w.prefetch(names)
    wait_until(lambda: w.order() and w.order()["files"] == 600, 30, "the order to be told")
    peak = 0
    for number, name in enumerate(names):
        w.read(name)
        if number % 50 == 10:
            order = w.order()
            peak = max(peak, order["memory_bytes"])
            assert order["ahead_files"] < 600
    assert 1 << 20 < peak <= 4 << 20
    wait_until(lambda: w.status()["orders"] == [], 20, "the order to be over")
    assert w.status()["figures"]["cache_evictions"] == 0
    assert w.status()["figures"]["cache_adds"] <= 4


def test_it_ends_when_all_was_read(world):
    w = world()
    names = w.fill(8)
    process = w.prefetch(names)
    w.quiet(8)
    w.read(*names)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert out == b"Of 8 files of the order 8 were seen to be read; 16 MiB were made ready ahead of it.\n"
    assert w.status()["orders"] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_order_goes_with_the_process(world, number):
    w = world()
    names = w.fill(8)
    process = w.prefetch(names, "--window", "4MiB")
    w.quiet(8)
    process.send_signal(number)
    assert process.wait(30) == (-9 if number == signal.SIGKILL else 0)
    wait_until(lambda: w.status()["orders"] == [], 20, "the order to be dropped")
    fetched = w.status()["cache"][0]["bytes"]
    w.read(names[0])
    assert w.status()["cache"][0]["bytes"] <= fetched + (1 << 16)


@pytest.mark.parametrize("user", [0, 20001])
def test_it_ends_with_the_process_it_is_for(world, user):
    """Root tells the order; the process is whoever's."""
    w = world()
    names = w.fill(4)
    with subprocess.Popen(["sleep", "60"], user=user) as job:
        process = w.prefetch(names, "--pid", str(job.pid))
        w.quiet(4)
        job.kill()
    assert process.wait(30) == 0
    assert wait_until(lambda: w.status()["orders"] == [], 20, "the order to be dropped")


@pytest.mark.parametrize("script, code", [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_a_command_is_run_and_its_status_is_ours(world, script, code):
    w = world()
    names = w.fill(4)
    list_path = w.site.path("order")
    with open(list_path, "w", encoding="ascii") as f:
        f.write("\n".join(names))
    got, out, err = w.server.cli("prefetch", w.point, "--order", list_path, "--", "sh", "-c", f"echo ran; {script}", check=False)
    assert (got, out, err) == (code, "ran\n", "")
    wait_until(lambda: w.status()["orders"] == [], 20, "the order to be dropped")
    got, _, err = w.server.cli("prefetch", w.point, "--order", list_path, "--", "no-such-command", check=False)
    assert got == 127 and "cannot run no-such-command" in err


def test_a_command_goes_on_when_the_mount_ends(world):
    w = world()
    names = w.fill(4)
    list_path, gate = w.site.path("order"), w.site.path("gate")
    with open(list_path, "w", encoding="ascii") as f:
        f.write("\n".join(names))
    if os.path.exists(gate):
        os.unlink(gate)
    process = subprocess.Popen([w.site.binary, "prefetch", w.point, "--order", list_path, "--", "sh", "-c",
                                f"until [ -e {gate} ]; do sleep 0.05; done; exit 5"], stderr=subprocess.PIPE, text=True)
    w.processes.append(process)
    try:
        wait_until(lambda: w.order() and w.order()["files"] == 4, 20, "the order to be told")
        w.mount.kill()
        assert "the order is dropped" in process.stderr.readline()
    finally:
        with open(gate, "w", encoding="ascii"):
            pass
    assert process.wait(30) == 5


def test_files_that_are_not_there_are_left_out(world, tmp_path):
    w = world()
    names = w.fill(4)
    os.mkdir(os.path.join(w.point, "folder"))
    (tmp_path / "outside").write_text("x")
    os.symlink(tmp_path / "outside", os.path.join(w.point, "link"))
    order = [names[0], "missing", "folder", "link", *[f"nothing{i}" for i in range(10)], *names[1:]]
    process = w.prefetch(order)
    assert w.quiet(4)["files"] == 4
    w.read(*names)
    _, err = process.communicate(timeout=30)
    text = err.decode()
    assert process.returncode == 0
    assert "missing of the order is left out: No such file or directory" in text
    assert "folder of the order is left out: it is no file" in text
    assert "link of the order is left out: it is not on the mount" in text
    assert "8 more of the order are left out" in text


def test_names_parted_by_zeroes(world):
    w = world()
    with open(os.path.join(w.point, "odd\nname"), "wb") as f:
        f.write(b"x" * 100)
        f.flush()
        os.fsync(f.fileno())
    w.prefetch([], "-0", data=b"odd\nname\0")
    assert w.quiet(1)["failed"] == 0


def test_an_order_of_many_epochs_longer_than_the_mount_takes_at_a_time(world):
    w = world()
    names = w.fill(50, 1000)
    epochs = 2000       # 100,000 entries: more than 65,536
    process = w.prefetch(names * epochs, "--ahead", "20")
    order = wait_until(lambda: w.order() and w.order()["files"] == 65536 and w.order(), 60, "as much as it takes")
    assert order["ahead_files"] == 20
    for _ in range(3):
        w.read(*names)
    # What was read makes room for more.
    wait_until(lambda: w.order()["files"] == 65536 + 150, 30, "the next ones to be told")
    assert w.order()["read"] == 150
    process.kill()


def test_many_workers_read_out_of_order(world):
    w = world()
    names = w.fill(64)
    w.mount.umount()
    w.mount.options.append("--ro")
    w.mount.start()
    w.prefetch(names, "--window", "16MiB")
    w.quiet(64)

    def work(number):
        for start in range(number * 4, 64, 16):
            w.read(*names[start:start + 4])
    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    peak = 0
    while any(worker.is_alive() for worker in workers):
        orders = w.status()["orders"]
        peak = max([peak] + [order["ahead_bytes"] for order in orders])
    for worker in workers:
        worker.join()
    assert 0 < peak <= 16 << 20
    wait_until(lambda: w.status()["orders"] == [], 20, "the order to be over")


def test_several_orders_at_a_time(world):
    w = world()
    names = w.fill(12)
    first = w.prefetch(names[:6], "--window", "4MiB")
    second = w.prefetch(names[6:], "--window", "6MiB")

    def both():
        orders = w.status()["orders"]
        return len(orders) == 2 and sorted(o["ready"] for o in orders) == [2, 3]
    wait_until(both, 30, "both windows to be filled")
    w.read(*names[6:])
    assert second.wait(30) == 0
    assert w.order()["read"] == 0
    w.read(*names[:6])
    assert first.wait(30) == 0


def test_too_many_orders_are_refused(world):
    w = world()
    many = [Control(socket_path(w.point)) for _ in range(17)]
    try:
        answers = [control.ask(op="order", window=1 << 20, ahead=10) for control in many]
        assert [("error" in answer) for answer in answers] == [False] * 16 + [True]
        assert "error" in many[0].ask(op="order", window=1 << 20, ahead=10)
    finally:
        for control in many:
            control.socket.close()


def test_without_a_cache_it_goes_to_memory_and_stays_below_its_limit(world):
    w = world("--cache-memory", "32MiB", cache=False)
    names = w.fill(20)
    process = w.prefetch(names)
    order = w.quiet(20)
    assert (order["window_bytes"], order["ahead_bytes"]) == (8 << 20, 8 << 20)
    figures = w.status()["figures"]
    assert 8 << 20 <= figures["read_memory_bytes"] < 9 << 20
    w.read(names[0])
    assert w.status()["figures"]["read_memory_hits"] > figures["read_memory_hits"]
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert b"the mount has no cache directory, so the window is 8 MiB of its memory instead of 256 MiB" in err


def test_a_server_that_is_away_fails_what_it_has_to_and_nothing_hangs(site):
    server = tcp_server(site, "prefetch-away")
    w = World(site, server, "away", ["--cache-dir", site.path("away-cache"), "--timeout", "2s"])
    names = w.fill(12)
    w.prefetch(names, "--window", "4MiB")
    w.quiet(12)
    server.kill()
    w.processes[0].kill()
    wait_until(lambda: w.status()["orders"] == [], 20, "the order to be dropped")
    server.start()
    w.prefetch(names, "--window", "8MiB")
    wait_until(lambda: w.order() and w.order()["ready"] == 4, 60, "it to go on")
    w.close()


def test_it_works_while_the_order_is_held_and_the_mount_is_unmounted(world):
    w = world()
    names = w.fill(4)
    process = w.prefetch(names, "--window", "2MiB")
    w.quiet(4)
    assert w.mount.umount() == 0
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"the order is dropped: the mount has ended" in err
    w.mount.start()


@pytest.mark.parametrize("words, code, text", [
    ([], 2, "--order is needed"), (["--order", "/nonexistent/list"], 1, "cannot read the order"),
    (["--order", "/dev/null", "--window", "5"], 2, "window"), (["--order", "/dev/null", "--ahead", "0"], 2, "ahead"),
    (["--order", "/dev/null", "--pid", "1", "--", "true"], 2, "cannot use --pid with a command"),
    (["--order", "/dev/null", "true"], 2, "unexpected argument 'true': a command follows after --"),
    (["--order", "/dev/null", "sh", "-c", "true"], 2, "unexpected argument 'sh': a command follows after --"),
    (["--order", "/dev/null", "--pid", "999999999"], 1, "there is no process")])
def test_wrong_usage(site, server, words, code, text):
    if not server.site.main_mount:
        server.volume("usage")
        server.site.main_mount = server.mount("usage", "usage")
    got, _, err = server.cli("prefetch", server.site.main_mount.point, *words, check=False)
    assert got == code and text in err, err


def test_a_directory_is_no_order(server, tmp_path):
    if not server.site.main_mount:
        server.volume("usage")
        server.site.main_mount = server.mount("usage", "usage")
    got = server.cli("prefetch", server.site.main_mount.point, "--order", str(tmp_path), "--", "true", check=False)
    assert got == (1, "", f"epochfs: cannot read the order {tmp_path}: Is a directory\n")


def test_what_is_no_mount_is_refused(server, tmp_path):
    code, _, err = server.cli("prefetch", str(tmp_path), "--order", "/dev/null", check=False)
    assert (code, err) == (1, f"epochfs: cannot prefetch for {tmp_path}: it is on no EpochFS mount\n")


def early(w, *command, ignored=None):
    """It has read a name and waits for the next ones."""
    process = subprocess.Popen([w.site.binary, "prefetch", w.point, "--order", "-", *command], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: ignored and signal.signal(ignored, signal.SIG_IGN))
    w.site.keeper.process(process.pid)
    w.processes.append(process)
    process.stdin.write("missing\n")
    process.stdin.flush()
    assert "missing of the order is left out" in process.stderr.readline()
    return process


def test_interrupted_while_the_list_is_still_coming_it_ends_as_later(world):
    process = early(world())
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_interrupted_before_its_command_it_does_not_run_it(world, tmp_path):
    process = early(world(), "--", "touch", str(tmp_path / "run"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert process.stderr.read() == "epochfs: interrupted before touch was started\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_signals_that_are_ignored_stay_ignored(world, number):
    """As by nohup: neither before the order is told nor after it do they end anything."""
    w = world()
    names = w.fill(2)
    process = early(w, ignored=number)
    process.send_signal(number)
    order, process.stdin = process.stdin, None      # communicate() would trip over one that is closed
    with order:
        order.write("".join(f"{name}\n" for name in names))
    w.quiet(2)
    process.send_signal(number)
    w.read(*names)
    assert process.wait(30) == 0
    assert "Of 2 files of the order 2 were seen to be read" in process.stdout.read()
