"""A network that delays, holds back, cuts, loses and repeats: everything is done once, and nobody gets an error."""
import errno
import fcntl
import os
import random
import signal
import time

from company import Company, Hand, Hands, map_file, map_read, put, take
from crowd import Crowd
from locking import KINDS
from proxy import CALM, STORM, Proxy
from suite import case
from syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from waiting import TookTooLong, wait_until

TIMEOUT_SECONDS = 60        # of the mounts
PROCESSES = 4


def company_behind(test, mounts=2, options=()):
    """(company, proxy): every mount reaches the server through the proxy."""
    company = Company(test.site, 0, ["--block-size", "64KiB", "--retention", "none"], ["--listen", "127.0.0.1:0", "--grace", "none"], options)
    with open(os.path.join(company.server.data, "address"), encoding="ascii") as f:
        address = next(line.strip() for line in f if not line.startswith("unix:"))
    proxy = Proxy(test.site.keeper, address, test.seed)
    proxy.weather(CALM)
    for k in range(mounts):
        company.join(f"mount-{'abcd'[k]}", proxy.address)
    return company, proxy


class Wrong(Exception):
    pass


class Once:
    """In a hand: does things that succeed exactly once, in a folder of its own, and knows how it must look."""

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.links = {}             # name -> file number
        self.folders, self.made, self.xattrs = set(), 0, set()
        self.slowest, self.steps = (0, ""), 0
        self.records = 0
        self.nameless = []          # (descriptor, content) of unlinked files

    def path(self, name):
        return os.path.join(self.folder, name)

    def call(self, what, function, *args):
        began = time.monotonic()
        try:
            return function(*args)
        except OSError as error:
            raise Wrong(f"{what} ({self.folder}): {errno.errorcode.get(error.errno)} after {time.monotonic() - began:.2f} s, step {self.steps}") \
                from error
        finally:
            self.slowest = max(self.slowest, (time.monotonic() - began, what))

    def fresh(self, kind):
        self.made += 1
        return f"{kind}{self.made}"

    def create(self):
        name = self.fresh("f")
        fd = self.call(f"create {name} O_EXCL", os.open, self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.call(f"write {name}", os.write, fd, b"%d" % self.made)
        if self.rng.random() < 0.5:
            self.call(f"fsync {name}", os.fsync, fd)
        self.call(f"close {name}", os.close, fd)
        self.links[name] = self.made

    def link(self):
        old, new = self.rng.choice(sorted(self.links)), self.fresh("l")
        self.call(f"link {old} {new}", os.link, self.path(old), self.path(new))
        self.links[new] = self.links[old]
        self.count(new)

    def count(self, name):
        """The number of links says whether each link and unlink was done once."""
        got, want = self.call(f"stat {name}", os.stat, self.path(name)).st_nlink, list(self.links.values()).count(self.links[name])
        if got != want:
            raise Wrong(f"{self.path(name)} has {got} links, not {want}, step {self.steps}")

    def unlink(self):
        name = self.rng.choice(sorted(self.links))
        self.call(f"unlink {name}", os.unlink, self.path(name))
        file = self.links.pop(name)
        other = next((n for n, f in sorted(self.links.items()) if f == file), None)
        if other:
            self.count(other)

    def rename(self):
        old, new = self.rng.choice(sorted(self.links)), self.fresh("r")
        self.call(f"rename {old} {new} NOREPLACE", renameat2, self.path(old), self.path(new), RENAME_NOREPLACE)
        self.links[new] = self.links.pop(old)

    def exchange(self):
        one, two = self.rng.choice(sorted(self.links)), self.rng.choice(sorted(self.links))
        self.call(f"rename {one} {two} EXCHANGE", renameat2, self.path(one), self.path(two), RENAME_EXCHANGE)
        self.links[one], self.links[two] = self.links[two], self.links[one]

    def directory(self):
        if self.folders and self.rng.random() < 0.5:
            name = self.folders.pop()
            self.call(f"rmdir {name}", os.rmdir, self.path(name))
        else:
            name = self.fresh("d")
            self.call(f"mkdir {name}", os.mkdir, self.path(name))
            self.folders.add(name)

    def xattr(self):
        if self.xattrs and self.rng.random() < 0.5:
            name = self.xattrs.pop()
            self.call(f"removexattr {name}", os.removexattr, self.folder, name)
        else:
            name = self.fresh("user.x")
            self.call(f"setxattr {name} CREATE", os.setxattr, self.folder, name, b"x", os.XATTR_CREATE)
            self.xattrs.add(name)

    def append(self):
        fd = self.call("open log", os.open, self.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.call("append", os.write, fd, b"%08d" % self.records)
        if self.rng.random() < 0.5:
            self.call("fsync log", os.fsync, fd)
        self.call("close log", os.close, fd)
        self.records += 1

    def hold(self):
        """An open file without a name: a CLOSE of an earlier open that comes late must not take it away."""
        if self.nameless and (len(self.nameless) > 3 or self.rng.random() < 0.5):
            fd, want = self.nameless.pop(0)
            got = self.call("read of an unlinked file", os.pread, fd, 100, 0)
            if got != want:
                raise Wrong(f"an unlinked file that is open holds {got!r}, not {want!r}, step {self.steps}")
            self.call("close of an unlinked file", os.close, fd)
            return
        name = self.rng.choice(sorted(self.links))
        for _ in range(2):
            os.close(self.call(f"open {name}", os.open, self.path(name), os.O_RDONLY))
        fd, file = self.call(f"open {name}", os.open, self.path(name), os.O_RDWR), self.links.pop(name)
        self.call(f"unlink {name}", os.unlink, self.path(name))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.nameless.append((fd, b"%d" % file))

    def check(self, folder):
        """What differs from what was done, as seen below a folder of any mount."""
        names = set(os.listdir(folder))
        want = set(self.links) | self.folders | ({"log"} if self.records else set())
        if names != want:
            raise Wrong(f"{folder}: missing {sorted(want - names)}, not expected {sorted(names - want)}")
        for name, file in self.links.items():
            data = take(os.path.join(folder, name))
            if data != b"%d" % file:
                raise Wrong(f"{folder}/{name} holds {data!r}, not {file}")
        got, want = (take(os.path.join(folder, "log")) if self.records else b""), b"".join(b"%08d" % k for k in range(self.records))
        if got != want:
            at = next((k for k in range(0, max(len(got), len(want)), 8) if got[k:k + 8] != want[k:k + 8]), 0)
            raise Wrong(f"{folder}/log: {len(got)} bytes, {len(want)} were appended; at {at} there is {got[at:at + 24]!r}")
        xattrs = set(os.listxattr(folder))
        if xattrs != self.xattrs:
            raise Wrong(f"{folder}: xattrs {sorted(xattrs ^ self.xattrs)} are too many or missing")

    VERBS = ["create"] * 4 + ["link"] * 3 + ["unlink"] * 3 + ["rename"] * 3 + ["exchange", "directory", "directory", "xattr", "append", "append", "hold", "hold"]


def do_once(folder, elsewhere, seed, end):
    """In a hand, until a moment: (steps, slowest)."""
    once = Once(folder, seed)
    while time.monotonic() < end:
        verb = once.rng.choice(once.VERBS)
        if verb in ("link", "unlink", "rename", "exchange", "hold") and not once.links:
            verb = "create"
        getattr(once, verb)()
        once.steps += 1
    once.check(folder)
    once.check(elsewhere)
    return once.steps, once.slowest


def weathered(test, weather, seconds):
    """Processes on two mounts behind a proxy, each with a folder of its own."""
    company, proxy = company_behind(test)
    hands = []
    try:
        end = time.monotonic() + seconds * (6 if test.long else 1)
        for k in range(PROCESSES):
            os.mkdir(os.path.join(company.points[0], f"once-{k}"))
        proxy.weather(weather)
        for k in range(PROCESSES):
            here, there = [os.path.join(company.points[(k + side) % 2], f"once-{k}") for side in (0, 1)]
            hands.append(Hand(test.site.keeper, f"process {k} on {'ab'[k % 2]}"))
            hands[-1].start(do_once, here, there, f"{test.seed} once {k}", end)
        steps, slowest = 0, (0, "")
        for hand in hands:
            done, slow = hand.finish(end - time.monotonic() + TIMEOUT_SECONDS + 10)
            steps, slowest = steps + done, max(slowest, tuple(slow))
            test.score.passed += done
        test.say(f"{steps} steps, slowest {slowest[0]:.2f} s ({slowest[1]}), {proxy.connections()} connections, {proxy.counts()}")
        test.true(steps > 50, f"a fair number of steps ({steps})")
        proxy.weather(CALM)
        # Whatever is still on its way.
        time.sleep(1.6)
        for hand in hands:
            hand.end()
        test.equal(company.problems(), [], "mounts and fsck at the end")
    except Exception as error:
        test.say(f"the proxy did {proxy.counts()}")
        if isinstance(error, TookTooLong):
            company.print_stacks()
        raise
    finally:
        for hand in hands:
            hand.end()
        for mount in company.mounts:
            mount.discard()
        proxy.end()


@case(seconds=150, chance=True)
def everything_is_done_once_though_answers_are_lost(test):
    weathered(test, {"lose": 0.15}, 5)


@case(seconds=150)
def everything_is_done_once_though_connections_are_cut(test):
    weathered(test, {"cut": 0.03, "delay": 0.05}, 5)


@case(seconds=150, chance=True)
def everything_is_done_once_though_requests_arrive_late_and_again(test):
    weathered(test, {"late": 0.1, "hold": 0.1}, 5)


@case(seconds=150)
def everything_is_done_once_though_whole_connections_are_replayed(test):
    weathered(test, {"cut": 0.02, "replay": 0.5}, 5)


@case(seconds=150, chance=True)
def everything_is_done_once_in_a_storm(test):
    weathered(test, STORM, 5)


@case(seconds=200, chance=True)
def a_crowd_in_one_directory_sees_no_past_through_a_storm(test):
    company, proxy = company_behind(test)
    crowd = Crowd(test, company)
    try:
        proxy.weather(STORM)
        crowd.run(60 if test.long else 10)
        proxy.weather(CALM)
        said, hiccups = crowd.end(TIMEOUT_SECONDS + 10)
        test.say(f"{proxy.connections()} connections, {proxy.counts()}")
        crowd.judge(said, hiccups, TIMEOUT_SECONDS)
        crowd.judge_log(said)
        crowd.judge_end()
    finally:
        crowd.close()
        for mount in company.mounts:
            mount.discard()
        proxy.end()


def take_turns(folder, outside, seed, seconds):
    """In a hand: takes locks of all kinds over and over.  A file outside the mounts tells whether somebody else has the same one.
    Returns (how often it had one, how often somebody else did)."""
    rng, had, refused = random.Random(seed), 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = rng.choice(list(KINDS))
        lock, wait, mark = KINDS[name], rng.random() < 0.7, os.path.join(outside, name)
        fd = os.open(os.path.join(folder, name), os.O_RDWR)
        try:
            lock(fd, fcntl.LOCK_EX, wait=wait)
        except BlockingIOError:
            if wait:
                raise
            refused += 1
            os.close(fd)
            continue
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))     # fails where two have the lock
        time.sleep(rng.uniform(0, 0.003))
        os.unlink(mark)
        had += 1
        if rng.random() < 0.5:
            lock(fd, fcntl.LOCK_UN)
        os.close(fd)
    return had, refused


def locked_in(test, weather):
    company, proxy = company_behind(test)
    hands = [Hand(test.site.keeper, f"turns-{k}") for k in range(6)]
    outside = test.site.path("outside")
    os.makedirs(outside, exist_ok=True)
    try:
        for name in KINDS:
            put(os.path.join(company.points[0], name), b"")
        proxy.weather(weather)
        for k, hand in enumerate(hands):
            hand.start(take_turns, company.points[k % 2], outside, f"{test.seed} {k}", 30 if test.long else 5)
        said = [hand.finish(TIMEOUT_SECONDS + 60) for hand in hands]
        proxy.weather(CALM)
        test.say(f"{sum(had for had, _ in said)} locks, {sum(refused for _, refused in said)} refused; {proxy.counts()}")
        test.true(all(had for had, _ in said), "everybody had its turn")
        for name, lock in KINDS.items():
            fd = os.open(os.path.join(company.points[0], name), os.O_RDWR)
            wait_until(lambda: not errno_of(lock, fd, fcntl.LOCK_EX), 10, f"nobody to have the {name} lock in the end")
            os.close(fd)
    finally:
        for hand in hands:
            hand.end()
        for mount in company.mounts:
            mount.discard()
        proxy.end()


def errno_of(function, *args):
    try:
        function(*args)
        return 0
    except OSError as error:
        return error.errno


@case(seconds=200)
def locks_exclude_though_requests_arrive_late_and_again(test):
    locked_in(test, {"late": 0.1, "hold": 0.1, "lose": 0.05, "replay": 0.2, "cut": 0.01})


@case(seconds=200, chance=True)
def locks_exclude_in_a_storm(test):
    locked_in(test, STORM)


@case(seconds=60)
def a_close_that_arrives_late_does_not_take_away_what_was_opened_again(test):
    """Without retention an unlinked file lives on its being open alone."""
    company, proxy = company_behind(test, 2)
    hand = Hand(test.site.keeper, "process on a")
    try:
        a = company.points[0]
        for turn in range(3):
            path = f"{a}/f{turn}"
            put(path, b"%d" % turn, sync=True)
            hand.call(take, path)
            proxy.weather({"late_close": 1})
            before = proxy.counts().get("late_close", 0)
            hand.call(take, path)
            wait_until(lambda: proxy.counts().get("late_close", 0) > before, 10, "a close to be held back")
            proxy.weather(CALM)
            fd = hand.call(os.open, path, os.O_RDWR)
            hand.call(os.unlink, path)
            time.sleep(2.2)         # the close has come by then (within a second), and the reaper after it
            hand.call(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                test.equal(hand.call(os.pread, fd, 10, 0), b"%d" % turn, f"turn {turn}: an unlinked file that is open")
                hand.call(os.pwrite, fd, b"x", 0)
                test.equal(hand.error(os.fsync, fd), 0, f"turn {turn}: fsync of it")
            except OSError as error:
                test.true(False, f"turn {turn}: an unlinked file that is open can be read (got {error})")
            hand.call(os.close, fd)
    finally:
        hand.end()
        for mount in company.mounts:
            mount.discard()
        proxy.end()


@case(seconds=120, chance=True)
def a_connection_that_swallows_everything_is_given_up_in_time(test):
    """The server is there and other connections work: half the time-out must be enough to find that out."""
    company, proxy = company_behind(test, 1, ["--timeout", "20s"])
    hand = Hand(test.site.keeper, "process on a")
    try:
        a = company.points[0]
        put(f"{a}/f", b"x", sync=True)
        proxy.weather({"swallow": 1})
        hand.start(os.mkdir, f"{a}/d")
        wait_until(lambda: proxy.counts().get("swallow"), 10, "a connection to be swallowed")
        proxy.weather(CALM)
        began = time.monotonic()
        try:
            hand.finish(40)
            problem = None
        except OSError as error:
            problem = error
        took = time.monotonic() - began
        test.true(problem is None, f"mkdir works (got {problem} after {took:.1f} s)")
        test.true(took < 11, f"it took {took:.1f} s of a time-out of 20 s")
    finally:
        proxy.weather(CALM)
        hand.end()
        for mount in company.mounts:
            mount.discard()
        proxy.end()


def replace_for(folder, seconds):
    """In a hand: a file is replaced by rename, over and over."""
    number, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        put(os.path.join(folder, "temporary"), b"%08d" % number)
        os.rename(os.path.join(folder, "temporary"), os.path.join(folder, "name"))
    return number


def open_for(folder, seconds):
    """In a hand: opens and reads it by its name; [what went wrong], how often it was tried."""
    tries, wrong, last, end = 0, [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        tries += 1
        try:
            number = int(take(os.path.join(folder, "name")))
            if number < last:
                wrong.append(f"try {tries}: {number} after {last}")
            last = number
        except (OSError, ValueError) as error:
            wrong.append(f"try {tries}: {error}")
    return wrong[:5], tries


@case(seconds=60)
def a_name_that_is_always_there_can_always_be_opened(test):
    """While others replace it, and nothing of the replaced files is kept: an inode looked up a moment ago may be gone for good.
    The network is slow, so that there is time for that."""
    company, proxy = company_behind(test)
    proxy.weather({"delay": 0.6})
    folders = [os.path.join(point, "d") for point in company.points]
    os.mkdir(folders[0])
    put(os.path.join(folders[0], "name"), b"%08d" % 0)
    seconds = 20 if test.long else 4
    try:
        with Hands(test.site, "writer on a", "reader on a", "reader on b", "reader on b") as (writer, *readers):
            writer.start(replace_for, folders[0], seconds)
            for k, reader in enumerate(readers):
                reader.start(open_for, folders[min(k, 1)], seconds)
            test.say(f"replaced {writer.finish(seconds + 20)} times")
            for reader in readers:
                wrong, tries = reader.finish(seconds + 20)
                test.equal(wrong, [], f"{reader.name}: of {tries} times opened and read")
        test.equal(company.problems(), [], "mounts and fsck at the end")
    finally:
        for mount in company.mounts:
            mount.discard()
        proxy.end()


@case(seconds=120)
def a_mount_that_leaves_a_slow_server_is_not_taken_for_alive(test):
    """It is not heard of again, and over TCP the server cannot see that it is gone: its files stayed open, and took space, for minutes."""
    company, proxy = company_behind(test, 1)
    mount = company.mounts[0]
    try:
        put(os.path.join(mount.point, "file"), b"x" * 100000, sync=True)
        company.server.freeze()
        try:
            mount.process.terminate()       # umount(8) would ask the server for the free space first
            slow_until = time.monotonic() + 3
            wait_until(lambda: not mount.alive() or time.monotonic() > slow_until, 10, "three seconds to pass")
        finally:
            company.server.process.send_signal(signal.SIGCONT)
        test.equal(mount.wait_exit(TIMEOUT_SECONDS + 10, "end"), 0, "how the mount has ended")
        test.equal(company.server.json("status")["sessions"], [], "who has mounted the volume, as far as the server knows")
    finally:
        mount.discard()
        proxy.end()


@case(seconds=120, long=True)
def a_mount_that_is_cut_off_reads_nothing_old_whatever_it_waits_for(test):
    """It has files to close, and reads that wait for the server, when others are let in: the kernel has forgotten its pages by then."""
    company, proxy = company_behind(test, 1)
    near, hands = company.join("mount-near"), []
    try:
        far = company.points[0]
        for name in ("shared", "closed", "not read"):
            put(f"{near.point}/{name}", b"old" * 1000, sync=True)
        hands = [Hand(test.site.keeper, name) for name in ("reader", "mapper", "closer", "waiter")]
        reader, mapper, closer, waiter = hands
        fd = reader.call(os.open, f"{far}/shared", os.O_RDONLY)
        mapped = mapper.call(map_file, mapper.call(os.open, f"{far}/shared", os.O_RDONLY), 3000, False)
        test.equal(reader.call(os.pread, fd, 3, 0), b"old", "read before")
        test.equal(mapper.call(map_read, mapped, 0, 3), b"old", "mapped before")
        closed = closer.call(os.open, f"{far}/closed", os.O_RDONLY)
        unread = waiter.call(os.open, f"{far}/not read", os.O_RDONLY)
        proxy.weather({"swallow": 1})
        closer.call(os.close, closed)
        waiter.start(os.pread, unread, 3, 0)
        # The close, the read, and the request for the lease, whose answer before that one could still have told of what follows.
        wait_until(lambda: proxy.counts().get("swallow", 0) >= 3, 20, "all it asks for to be swallowed")
        put(f"{near.point}/shared", b"new" * 1000, sync=True)        # when the far one has been given up
        reader.start(os.pread, fd, 3, 0)
        mapper.start(map_read, mapped, 0, 3)
        proxy.weather(CALM)
        test.equal(reader.finish(TIMEOUT_SECONDS), b"new", "read on the mount that was cut off")
        test.equal(mapper.finish(TIMEOUT_SECONDS), b"new", "mapped there")
        test.equal(waiter.finish(TIMEOUT_SECONDS), b"old", "what was asked for while it was cut off")
        for hand in hands:
            hand.end()
        test.equal(company.problems(), [], "mounts and fsck at the end")
    finally:
        for hand in hands:
            hand.end()
        for mount in company.mounts:
            mount.discard()
        proxy.end()
