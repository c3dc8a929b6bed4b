"""kill -9, and power cuts, at random moments during a mixed load."""
import os
import random
import threading
import time

from disks import Disk
from load import Load
from mounting import over_tcp
from suite import case
from waiting import TookTooLong, wait_until
from writers import KINDS, Saver

PAUSE_MAX = 0.4             # seconds between a sign of life and the next kill, at most
EARLY_PAUSE_MAX = 0.12      # the same when the last start is not waited for
EARLY_CHANCE = 0.2
FSCK_EVERY = 10
WITH_SERVER_CHANCE = 0.25


def fsck_is_clean(test, server, when):
    """Waits for its turn: there is one fsck at a time."""
    server.wait_ready()

    def answer():
        clean, text = server.fsck()
        return None if "is running already" in text else (clean, text)

    clean, text = wait_until(answer, 120, "the fsck of somebody else to end")
    return test.true(clean, f"fsck {when} is clean: {text.strip()}")


class Churn:
    """What an administrator does meanwhile, over and over: gc, fsck, scrub, volumes made and deleted.

    A command may fail when its server is killed; fsck and scrub must never find anything."""

    def __init__(self, server, seed):
        self.server, self.rng = server, random.Random(f"{seed} churn")
        self.ending, self.problems, self.done = threading.Event(), [], 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.ending.wait(self.rng.uniform(0, 0.3)):
            name = f"churn-{self.done}"
            for command in self.rng.choice([[["gc"]], [["fsck"]], [["scrub"]],
                                            [["volume", "create", name], ["volume", "delete", name, "--yes"]]]):
                try:
                    code, out, _ = self.server.cli(*command, check=False, timeout=120)
                except TookTooLong as error:
                    self.problems.append(str(error))
                    continue
                if code and "finding" in out:
                    self.problems.append(f"{' '.join(command)}: {out.strip()}")
                self.done += 1

    def end(self, test):
        self.ending.set()
        self.thread.join()
        test.equal(self.problems, [], "what fsck and scrub found under load")


def loaded(test, volume_options, server_options, data=None, mount_options=(), kinds=None):
    """(server, mount, load) on a volume with small blocks, so that crashes find files of many blocks."""
    server = test.site.server(options=server_options, data=data)
    server.volume("load", *volume_options)
    mount = server.mount("load", options=mount_options)
    test.site.main_mount = mount
    return server, mount, Load(test.site, mount.point, test.seed, kinds)


@case(seconds=900)
def a_killed_server_costs_nothing_and_the_load_goes_on(test):
    """The mount waits and tries again: no writer sees an error, and not one byte is missing, synced or not."""
    rng = random.Random(f"{test.seed} server")
    server, mount, load = loaded(test, ["--block-size", "64KiB", "--compression", "lz4", "--retention", "none"], ["--grace", "1s"])
    churn = Churn(server, test.seed)
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
        load.wait_progress()
        load.stop()
        churn.end(test)
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them")
        mount.remount()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them, after a new mount")
        fsck_is_clean(test, server, "at the end")
        print(f"    {load.steps()} turns of {len(load.writers)} writers, {test.server_kills} kills, {churn.done} commands", flush=True)
    finally:
        churn.ending.set()
        load.abandon()


@case(seconds=900)
def a_killed_mount_keeps_what_it_acknowledged(test):
    """Synced bytes and files, renames, links and removes are there; nothing is there that nobody wrote."""
    rng = random.Random(f"{test.seed} mount")
    server, mount, load = loaded(test, ["--block-size", "64KiB", "--retention", "2s"], ["--grace", "1s", "--session-timeout", "5s"])
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


@case(seconds=120)
def what_was_written_synchronously_outlives_a_killed_mount(test):
    """However it was opened: some descriptors go around the kernel's pages, and it does not sync those itself."""
    server = test.site.server(options=["--grace", "1s", "--session-timeout", "5s"])
    server.volume("v")
    mount = server.mount("v")
    wanted = {}
    for access in ("WRONLY", "RDWR"):
        for kind in ("SYNC", "DSYNC"):
            for append in (0, os.O_APPEND):
                name = f"{access}-{kind}{'-APPEND' if append else ''}"
                fd = os.open(os.path.join(mount.point, name), os.O_CREAT | append | getattr(os, f"O_{access}") | getattr(os, f"O_{kind}"))
                os.write(fd, name.encode())
                os.write(fd, b"!" * 300_000)
                os.close(fd)
                wanted[name] = name.encode() + b"!" * 300_000
    mount.kill()
    test.note_kill()
    mount.start()
    for name, data in wanted.items():
        path = os.path.join(mount.point, name)
        test.true(os.path.exists(path), f"{name} is there")
        with open(path, "rb") as f:
            test.true(f.read() == data, f"what was written to {name} is in it")


@case(seconds=600)
def a_power_cut_under_the_server_costs_nothing(test):
    """What the disk was not told to keep is gone.  The server must have told it before it told anybody else."""
    rng = random.Random(f"{test.seed} power")
    disk = Disk(test.site.path("disk"), test.site.path("disk.image"), 2048)
    server, mount, load = loaded(test, ["--block-size", "64KiB", "--retention", "none"], ["--grace", "1s"],
                                 os.path.join(disk.point, "data"))
    try:
        load.start()
        for cut in range(test.power_cuts):
            load.wait_progress()
            time.sleep(rng.uniform(0, PAUSE_MAX))
            server.freeze()                 # so that nobody is answered by a disk that is gone
            disk.cut_power()
            server.kill()
            disk.power_on()
            server.start(ready=False)
            test.note_kill()
            if (cut + 1) % FSCK_EVERY == 0:
                load.wait_progress()
                fsck_is_clean(test, server, f"after {cut + 1} power cuts, under load")
        load.wait_progress()
        load.stop()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them")
        mount.remount()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them, after a new mount")
        fsck_is_clean(test, server, "at the end")
        print(f"    {load.steps()} turns of {len(load.writers)} writers, {test.power_cuts} power cuts", flush=True)
    finally:
        load.abandon()


def not_uploaded(server):
    return server.json("writeback", "list")


@case(seconds=300)
def a_power_cut_under_a_write_back_directory_costs_nothing_that_was_synced(test):
    """The local disk forgets what it was not told to keep.  The mount must have told it before fsync, rename and link went on."""
    rng = random.Random(f"{test.seed} write-back")
    disk = Disk(test.site.path("disk"), test.site.path("disk.image"), 1024)
    directory = [f"--writeback={os.path.join(disk.point, 'not-uploaded')}"]
    slowly = ["--upload-limit=1KiB"]    # which is not at all, unless somebody waits
    # Over TCP the server takes a killed mount for gone after five seconds, and the next one waits for that.
    cuts = max(1, test.power_cuts // 3) if over_tcp() else test.power_cuts
    server, mount, load = loaded(test, ["--block-size", "64KiB", "--retention", "2s"], ["--grace", "1s", "--session-timeout", "5s"],
                                 mount_options=[*directory, *slowly], kinds=[*KINDS, Saver])
    left = []
    try:
        for cut in range(cuts):
            load.start()
            if cut == 0 or rng.random() > EARLY_CHANCE:
                load.wait_progress()
            time.sleep(rng.uniform(0, PAUSE_MAX))
            load.mount_was_killed()
            mount.freeze()                  # so that nobody is answered by a disk that is gone
            disk.cut_power()
            mount.kill()
            test.note_kill()
            load.join_after_kill()
            left.append(len(not_uploaded(server)))
            disk.power_on()
            mount.options = [*directory, *(slowly if rng.random() < 0.5 and cut + 1 < cuts else [])]
            mount.start()
            load.check(exact=False)
        test.true(left[0] > 0, "the first cut has met files that were not uploaded")
        load.start()
        load.wait_progress()
        load.stop()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them")
        wait_until(lambda: not not_uploaded(server), 60, "everything to be uploaded")
        test.equal(mount.umount(), 0, "exit code of the mount")
        mount.options = []
        mount.start()
        test.equal(load.check(exact=True), len(load.writers), "folders as the server has them")
        test.equal(not_uploaded(server), [], "what is not uploaded at the end")
        fsck_is_clean(test, server, "at the end")
        print(f"    {load.steps()} turns of {len(load.writers)} writers, {cuts} power cuts with {left} files not uploaded", flush=True)
    finally:
        load.abandon()
