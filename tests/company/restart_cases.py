"""The server is killed and started again and again under load from four mounts.

Nobody gets an error, nothing is lost or done twice, and every lock is still held by who held it."""
import errno
import fcntl
import os
import random
import time

from company import Company, Hand, Hands, map_file, map_read, map_write, put, take
from crowd import Crowd
from kill_cases import fsck_is_clean
from load import Load
from locking import flock, ofd_lock, record_lock
from suite import CASES, case
from waiting import wait_until
from writers import Checkpointer, Creator, Gardener, Logger, Overwriter

# The crash suite's own cases came with what is used of it.
CASES[:] = [c for c in CASES if c.group != "kill"]

KINDS = [Creator, Logger, Gardener, Checkpointer, Overwriter, Creator, Logger, Checkpointer]
PAGE, PAGES = 4096, 4
PAUSE_MAX = 0.4
EARLY_CHANCE = 0.2          # killed again before it has answered anybody
TIMEOUT_SECONDS = 60        # of the mounts: what takes longer may be an error


class SpreadLoad(Load):
    """The writers of the crash tests, writer k on mount k % mounts."""

    def __init__(self, site, roots, seed):
        super().__init__(site, roots[0], seed, [])
        self.roots = roots
        for number, kind in enumerate(KINDS, 1):
            folder = os.path.join(roots[number % len(roots)], f"{kind.__name__.lower()}-{number}")
            os.mkdir(folder)
            writer = kind(number, folder, site.path(f"writer-{number}.notes"), seed)
            writer.prepare()
            self.writers.append(writer)

    def check_elsewhere(self, by):
        """Each folder as another mount sees it."""
        for writer in self.writers:
            k = next(k for k, root in enumerate(self.roots) if writer.folder.startswith(root + "/"))
            writer.folder = os.path.join(self.roots[(k + by) % len(self.roots)], os.path.basename(writer.folder))
        return self.check(exact=True)


class Locks:
    """On each mount a process that holds one lock of each kind, and one that tries to get what the mount before it holds."""

    def __init__(self, test, folders):
        self.test, self.folders, self.probes = test, folders, 0
        put(os.path.join(folders[0], "records"), b"x" * 1000)
        self.holders, self.rivals, self.fds, self.theirs = [], [], [], []
        for k, folder in enumerate(folders):
            put(os.path.join(folder, f"flock-{k}"), b"")
            self.holders.append(Hand(test.site.keeper, f"holder on {'abcd'[k]}"))
            self.fds.append([self.holders[k].call(os.open, os.path.join(folder, name), os.O_RDWR) for name in ("records", f"flock-{k}")])
            for how, at in self.ways(k):
                self.holders[k].call(how, self.fds[k][how is flock], fcntl.LOCK_EX, *at)
        for k, folder in enumerate(folders):
            before = (k - 1) % len(folders)
            self.rivals.append(Hand(test.site.keeper, f"rival on {'abcd'[k]}"))
            self.theirs.append([self.rivals[k].call(os.open, os.path.join(folder, name), os.O_RDWR) for name in ("records", f"flock-{before}")])
        # One waits all the time.
        self.waiter = Hand(test.site.keeper, "waiter on b")
        fd = self.waiter.call(os.open, os.path.join(folders[1], "records"), os.O_RDWR)
        self.waiter.start(record_lock, fd, fcntl.LOCK_EX, 0, 1, wait=True)

    @staticmethod
    def ways(k):
        """What the holder on mount k holds: (function, its place)."""
        return [(record_lock, (k,)), (ofd_lock, (100 + k,)), (flock, ())]

    def begin_probe(self):
        """Has all rivals try; the answers come when there is a server."""
        for k, rival in enumerate(self.rivals):
            rival.start(try_all, [(how, self.theirs[k][how is flock], at) for how, at in self.ways((k - 1) % len(self.rivals))])

    def end_probe(self, when):
        for k, rival in enumerate(self.rivals):
            got = rival.finish(TIMEOUT_SECONDS)
            self.probes += 1
            self.test.equal(got, [errno.EAGAIN] * 3, f"{when}: {rival.name} tries the fcntl, OFD and flock locks of mount "
                                                     f"{'abcd'[(k - 1) % len(self.rivals)]} (0: it got it)")
        self.test.true(not self.waiter.done(), f"{when}: who waits for a lock goes on waiting")

    def release(self):
        """In the end those who held let go, and the others get it: it was these who held it."""
        for k, holder in enumerate(self.holders):
            for how, at in self.ways(k):
                holder.call(how, self.fds[k][how is flock], fcntl.LOCK_UN, *at)
        self.test.equal(self.waiter.finish(10), None, "who waited has got the lock when it was let go")
        self.waiter.end()
        for k, rival in enumerate(self.rivals):
            got = rival.call(try_all, [(how, self.theirs[k][how is flock], at) for how, at in self.ways((k - 1) % len(self.rivals))], seconds=10)
            self.test.equal(got, [0, 0, 0], f"{rival.name} gets what was let go")

    def close(self):
        for hand in [*self.holders, *self.rivals, self.waiter]:
            hand.end()


def try_all(ways):
    """In a hand: the errno of each attempt."""
    answers = []
    for how, fd, at in ways:
        try:
            how(fd, fcntl.LOCK_EX, *at)
            answers.append(0)
        except OSError as error:
            answers.append(error.errno)
    return answers


def kill_and_start(server, rng, settled):
    """settled: waits until everybody has got on; left out now and then, so that a starting server is hit, too."""
    if rng.random() >= EARLY_CHANCE:
        settled()
        time.sleep(rng.uniform(0, PAUSE_MAX))
    else:
        time.sleep(rng.uniform(0, 0.1))
    server.kill()
    server.start(ready=False)


@case(seconds=200)
def a_killed_server_is_not_noticed_by_the_writers_of_four_mounts(test):
    rng = random.Random(f"{test.seed} restart")
    kills = 100 if test.long else 25
    company = Company(test.site, 4, ["--block-size", "64KiB", "--retention", "none"], ["--grace", "1s"])
    load = SpreadLoad(test.site, company.points, test.seed)
    try:
        load.start()
        for _ in range(kills):
            kill_and_start(company.server, rng, load.wait_progress)
            test.score.passed += 1
        load.wait_progress()
        load.stop()
        test.equal(load.check(exact=True), len(load.writers), "folders as their writers left them")
        test.equal(load.check_elsewhere(1), len(load.writers), "folders as their writers left them, seen by other mounts")
        for mount in company.mounts:
            mount.remount()
        test.equal(load.check_elsewhere(1), len(load.writers), "folders as their writers left them, after new mounts")
        fsck_is_clean(test, company.server, "at the end")
        test.say(f"{load.steps()} turns of {len(load.writers)} writers, {kills} kills")
    finally:
        load.abandon()


@case(seconds=200)
def locks_stay_with_who_holds_them_when_the_server_is_killed(test):
    rng = random.Random(f"{test.seed} restart locks")
    kills = 100 if test.long else 10
    company = Company(test.site, 4)
    folders = [os.path.join(point, "locks") for point in company.points]
    os.mkdir(folders[0])
    locks = Locks(test, folders)
    try:
        locks.begin_probe()
        locks.end_probe("before the first kill")
        for kill in range(kills):
            kill_and_start(company.server, rng, company.server.wait_ready)
            locks.begin_probe()
            locks.end_probe(f"after kill {kill + 1}")
        locks.release()
        test.say(f"{kills} kills, {locks.probes} probes")
    finally:
        locks.close()


@case(seconds=90)
def a_mapping_from_before_a_restart_goes_on_being_shared(test):
    """A store into a mapped page asks nobody: who has such pages must have told the new server before it lets others read."""
    company = Company(test.site, 2)
    a, b = [os.path.join(point, "f") for point in company.points]
    put(a, bytes(PAGES * PAGE), sync=True)
    with Hands(test.site, "process on a", "process on b") as (ann, ben):
        mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDWR)
        view, other = ann.call(map_file, mine, PAGES * PAGE), ben.call(map_file, theirs, PAGES * PAGE)
        version = 0
        for turn in range(40 if test.long else 12):
            for at in range(0, PAGES * PAGE, PAGE):
                if test.rng.random() < 0.7:
                    ann.call(map_write, view, at, b"%08d" % version)
            # What the other one has seen last, and by what, decides who holds what when the server goes.
            if test.rng.random() < 0.7:
                ben.call(os.pread, theirs, 8, PAGE * test.rng.randrange(PAGES))
            if test.rng.random() < 0.3:
                ben.call(map_read, other, 0, 8)
            if test.rng.random() < 0.5:
                ann.call(map_read, view, 0, 8)
            company.server.kill()
            company.server.start(ready=False)
            if test.rng.random() < 0.5:
                ben.call(os.stat, b)
                ann.call(os.stat, a)
            version += 1
            for at in range(0, PAGES * PAGE, PAGE):
                ann.call(map_write, view, at, b"%08d" % version)
                way = test.rng.randrange(2)
                seen = ben.call(os.pread, theirs, 8, at) if way else ben.call(map_read, other, at, at + 8)
                test.equal(seen, b"%08d" % version, f"turn {turn}: at {at} on b by {['its mapping', 'read'][way]}, after a store into the mapping on a")


LOOKS = {
    "stat": lambda path: os.stat(path).st_size,
    "a listing": lambda path: next(e.stat().st_size for e in os.scandir(os.path.dirname(path)) if e.name == os.path.basename(path)),
    "open and read": lambda path: len(take(path)),
    "open and SEEK_END": lambda path: os.lseek(os.open(path, os.O_RDONLY), 0, os.SEEK_END),
}


def look_by(what, path):
    """In a hand."""
    return LOOKS[what](path)


@case(seconds=90)
def what_was_not_stored_when_the_server_went_is_seen_by_others_as_soon_as_it_is_back(test):
    """The new server knows nothing of it until the writer has told; nobody is answered before."""
    company = Company(test.site, 2)
    a, b = [os.path.join(point, "f") for point in company.points]
    with Hands(test.site, "process on a", "process on b") as (ann, ben):
        fd, size = ann.call(os.open, a, os.O_RDWR | os.O_CREAT | os.O_APPEND), 0
        for turn in range(40 if test.long else 12):
            what = test.rng.choice(sorted(LOOKS))
            if test.rng.random() < 0.3:
                ben.call(look_by, what, b)
            size += ann.call(os.write, fd, b"x" * 1000)
            company.server.kill()
            company.server.start(ready=False)
            test.equal(ben.call(look_by, what, b), size, f"turn {turn}: size by {what} on b of what a wrote before the server was killed")


def crowd_under_kills(test, company, kills, **options):
    rng = random.Random(f"{test.seed} restart crowd")
    crowd = Crowd(test, company, **options)
    try:
        for kill in range(kills):
            kill_and_start(company.server, rng, lambda: crowd.wait_progress(TIMEOUT_SECONDS))
            if crowd.ended_early():
                test.say(f"ended after {kill + 1} kills")
                break
            test.score.passed += 1
        crowd.wait_progress(TIMEOUT_SECONDS)
        said, hiccups = crowd.end(TIMEOUT_SECONDS + 15)
        crowd.judge(said, hiccups, TIMEOUT_SECONDS)
        crowd.judge_log(said)
        crowd.judge_end()
    finally:
        crowd.close()


@case(seconds=120)
def a_killed_server_is_not_noticed_by_who_shares_memory(test):
    """Nothing but files mapped by all, stored into and read, on two mounts."""
    crowd_under_kills(test, Company(test.site, 2), 100 if test.long else 10, processes=4, kinds=["mapped"])


@case(seconds=120)
def a_killed_server_is_not_noticed_by_who_shares_files(test):
    """The same without mappings."""
    crowd_under_kills(test, Company(test.site, 2), 100 if test.long else 10, processes=4, kinds=["content", "renamed", "size", "counter"])


@case(seconds=200, chance=True)
def a_killed_server_is_not_noticed_by_a_crowd_in_one_directory(test):
    """What is shared stays coherent over the restarts: nobody sees the past, nothing is done twice."""
    crowd_under_kills(test, Company(test.site, 4), 100 if test.long else 15, processes=8)


@case(seconds=60, only="epochfs", by_socket=True, stored=True)
def what_a_killed_mount_had_not_stored_is_named(test):
    """In the status, and in the server's log; what it had synced is there, and its locks are free."""
    company = Company(test.site, 2)
    (a, b), victim = company.points, company.mounts[0]
    os.mkdir(f"{a}/run")
    put(f"{a}/run/synced", b"kept", sync=True)
    with Hands(test.site, a, b) as (ann, ben):
        fd = ann.call(os.open, f"{a}/run/checkpoint\n", os.O_RDWR | os.O_CREAT)
        ann.call(os.write, fd, b"lost")
        ann.call(flock, ann.call(os.open, f"{a}/run/synced", os.O_RDWR), fcntl.LOCK_EX)
        victim.kill()
        losses = wait_until(lambda: company.server.json("status")["losses"], 30, "the server to notice")
        test.equal([(one["volume"], one["mount_point"], one["given_up"]) for one in losses], [("shared", a, False)], "who is gone")
        test.true("/run/checkpoint\n" in losses[0]["paths"], f"what it could write to is named: {losses[0]['paths']}")
        test.equal(losses[0]["files"], len(losses[0]["paths"]), "how many there were")
        ben.call(flock, ben.call(os.open, f"{b}/run/synced", os.O_RDWR), fcntl.LOCK_EX, wait=True)
    test.equal(take(f"{b}/run/synced"), b"kept", "what was synced")
    text = company.server.cli("status")[1]
    test.true("went away" in text and "/run/checkpoint\\n" in text, f"the same for people: {text}")
    test.true("went away while it could write to" in company.server.log_text(), "and in the log")
    company.mounts.remove(victim)
    victim.discard()
    test.equal(company.problems(), [], "what is wrong at the end")
