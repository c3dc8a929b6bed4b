"""kill -9 at random moments during a mixed load."""
import random
import time

from load import Load
from suite import case

PAUSE_MAX = 0.4             # seconds between a sign of life and the next kill, at most
EARLY_PAUSE_MAX = 0.12      # the same when the last start is not waited for
EARLY_CHANCE = 0.2
FSCK_EVERY = 10
WITH_SERVER_CHANCE = 0.25


def fsck_is_clean(test, server, when):
    server.wait_ready()
    clean, text = server.fsck()
    return test.true(clean, f"fsck {when} is clean: {text.strip()}")


def loaded(test, volume_options, server_options):
    """(server, mount, load) on a volume with small blocks, so that crashes find files of many blocks."""
    server = test.site.server(options=server_options)
    server.volume("load", *volume_options)
    mount = server.mount("load")
    test.site.main_mount = mount
    return server, mount, Load(test.site, mount.point, test.seed)


@case(seconds=900)
def a_killed_server_costs_nothing_and_the_load_goes_on(test):
    """The mount waits and tries again: no writer sees an error, and not one byte is missing, synced or not."""
    rng = random.Random(f"{test.seed} server")
    server, mount, load = loaded(test, ["--block-size", "64KiB", "--compression", "lz4", "--retention", "none"], ["--grace", "1s"])
    try:
        load.start()
        for kill in range(test.server_kills):
            if rng.random() < EARLY_CHANCE:
                time.sleep(rng.uniform(0, EARLY_PAUSE_MAX))
            else:
                load.wait_progress()
                time.sleep(rng.uniform(0, PAUSE_MAX))
            server.kill()
            server.start(ready=False)
            test.note_kill()
            if (kill + 1) % FSCK_EVERY == 0:
                load.wait_progress()
                fsck_is_clean(test, server, f"after {kill + 1} kills, under load")
                server.cli("gc")
        load.wait_progress()
        load.stop()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them")
        mount.remount()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them, after a new mount")
        fsck_is_clean(test, server, "at the end")
        print(f"    {load.steps()} turns of {len(load.writers)} writers, {test.server_kills} kills", flush=True)
    finally:
        load.abandon()


@case(seconds=900)
def a_killed_mount_keeps_what_it_acknowledged(test):
    """Synced bytes, renames, links, creates and removes are there; nothing is there that nobody wrote."""
    rng = random.Random(f"{test.seed} mount")
    server, mount, load = loaded(test, ["--block-size", "64KiB", "--retention", "none"], ["--grace", "1s", "--session-timeout", "5s"])
    try:
        for kill in range(test.mount_kills):
            load.start()
            if rng.random() > EARLY_CHANCE:
                load.wait_progress()
            time.sleep(rng.uniform(0, PAUSE_MAX))
            load.mount_was_killed()
            mount.kill()
            if rng.random() < WITH_SERVER_CHANCE:
                server.kill()
                server.start(ready=False)
                test.note_kill()
            test.note_kill()
            load.join_after_kill()
            server.wait_ready()
            mount.start()
            load.check(exact=False)
            if (kill + 1) % FSCK_EVERY == 0:
                fsck_is_clean(test, server, f"after {kill + 1} kills")
                server.cli("gc")
        mount.remount()
        test.equal(load.check(exact=True), len(load.writers), "folders as they were found, after a new mount")
        fsck_is_clean(test, server, "at the end")
        print(f"    {load.steps()} turns of {len(load.writers)} writers, {test.mount_kills} kills", flush=True)
    finally:
        load.abandon()
