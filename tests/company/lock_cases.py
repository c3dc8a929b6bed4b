"""flock, fcntl and OFD locks over several mounts."""
import errno as E
import fcntl
import os
import sqlite3
import struct
import time

import syscalls as sys_
from company import VOLUME, Hands, both, put, sides
from locking import KINDS, flock, ofd_lock, record_lock
from suite import case
from waiting import wait_until


@case
def locks_exclude_across_mounts(test):
    a, b = both(test, "f")
    put(a, b"x")
    for name, how in KINDS.items():
        with Hands(test.site, a, b) as (ann, ben):
            mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDWR)
            ann.call(how, mine, fcntl.LOCK_EX)
            test.equal(ben.error(how, theirs, fcntl.LOCK_EX), E.EAGAIN, f"{name}: exclusive against exclusive")
            test.equal(ben.error(how, theirs, fcntl.LOCK_SH), E.EAGAIN, f"{name}: shared against exclusive")
            ann.call(how, mine, fcntl.LOCK_UN)
            test.equal(ben.error(how, theirs, fcntl.LOCK_SH), 0, f"{name}: shared once free")
            test.equal(ann.error(how, mine, fcntl.LOCK_SH), 0, f"{name}: shared beside shared")
            test.equal(ann.error(how, mine, fcntl.LOCK_EX), E.EAGAIN, f"{name}: upgrade against shared")
            ben.call(how, theirs, fcntl.LOCK_UN)
            test.equal(ann.error(how, mine, fcntl.LOCK_EX), 0, f"{name}: upgrade once alone")


@case
def a_lock_that_is_waited_for_comes_when_the_other_mount_lets_go(test):
    a, b = both(test, "f")
    put(a, b"x")
    for name, how in KINDS.items():
        with Hands(test.site, a, b) as (ann, ben):
            mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDWR)
            ann.call(how, mine, fcntl.LOCK_EX)
            ben.start(how, theirs, fcntl.LOCK_EX, wait=True)
            test.true(not ben.done(0.3), f"{name}: it waits")
            ann.call(how, mine, fcntl.LOCK_UN)
            test.equal(ben.finish(5), None, f"{name}: it has it")
            test.equal(ann.error(how, mine, fcntl.LOCK_EX), E.EAGAIN, f"{name}: now the other is excluded")
            ann.start(how, mine, fcntl.LOCK_EX, wait=True)
            test.true(not ann.done(0.1), f"{name}: waiting for the holder's end")
            ben.end()
            test.equal(ann.finish(5), None, f"{name}: a killed holder has let go")


@case
def ranges_of_a_file_are_locked_one_by_one_across_mounts(test):
    a, b = both(test, "f")
    put(a, b"x" * 100)
    with Hands(test.site, a, b) as (ann, ben):
        mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDWR)
        ann.call(record_lock, mine, fcntl.LOCK_EX, 10, 20)
        for start, length, want in ((0, 10, 0), (29, 1, E.EAGAIN), (30, 10, 0), (5, 100, E.EAGAIN), (10, 1, E.EAGAIN)):
            test.equal(ben.error(record_lock, theirs, fcntl.LOCK_EX, start, length), want, f"{length} from {start}, 20 from 10 are taken")
        got = sys_.flock_fields(ben.call(fcntl.fcntl, theirs, fcntl.F_GETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0)))
        test.equal(got[:4], (fcntl.F_WRLCK, 0, 10, 20), "F_GETLK tells the kind and the range")
        ann.call(record_lock, mine, fcntl.LOCK_UN, 15, 5)
        test.equal(ben.error(record_lock, theirs, fcntl.LOCK_EX, 15, 5), 0, "the part that was let go")
        test.equal(ben.error(record_lock, theirs, fcntl.LOCK_EX, 14, 1), E.EAGAIN, "the part before it")


@case
def two_who_wait_for_each_other_are_told(test):
    """fcntl locks over two mounts: one of the two gets EDEADLK, the other one goes on."""
    a, b = both(test, "f")
    put(a, b"xx")
    with Hands(test.site, a, b) as (ann, ben):
        mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDWR)
        ann.call(record_lock, mine, fcntl.LOCK_EX, 0)
        ben.call(record_lock, theirs, fcntl.LOCK_EX, 1)
        ann.start(record_lock, mine, fcntl.LOCK_EX, 1, wait=True)
        test.true(not ann.done(0.2), "the first one waits")
        test.equal(ben.error(record_lock, theirs, fcntl.LOCK_EX, 0, wait=True, seconds=5), E.EDEADLK, "the second one is refused")
        ben.call(record_lock, theirs, fcntl.LOCK_UN, 1)
        test.equal(ann.finish(5), None, "the first one goes on")


@case(seconds=90, only="epochfs", by_socket=True)
def the_locks_of_a_mount_that_died_are_let_go(test):
    """kill -9 of the daemon, on the server's host: it is noticed by its connection."""
    server = test.company.server
    mount = server.mount(VOLUME, name="doomed")
    try:
        path = os.path.join(mount.point, os.path.basename(test.a), "f")
        put(os.path.join(test.a, "f"), b"x")
        with Hands(test.site, "doomed", "b") as (ann, ben):
            mine, theirs = ann.call(os.open, path, os.O_RDWR), ben.call(os.open, os.path.join(test.b, "f"), os.O_RDWR)
            # fcntl and OFD locks exclude each other: each has a byte of its own.
            ways = [("fcntl", record_lock, 0), ("OFD", ofd_lock, 10), ("flock", flock)]
            for _, how, *at in ways:
                ann.call(how, mine, fcntl.LOCK_EX, *at)
            test.equal(ben.error(record_lock, theirs, fcntl.LOCK_EX), E.EAGAIN, "held")
            mount.kill()
            began = time.monotonic()
            for name, how, *at in ways:
                wait_until(lambda: ben.error(how, theirs, fcntl.LOCK_EX, *at) == 0, 30, f"the {name} lock of a dead mount to go")
            test.say(f"taken over after {time.monotonic() - began:.1f} s")
            test.true(True, "all were let go")
    finally:
        mount.discard()


def is_free(how, fd, ask):
    if ask:
        got = sys_.flock_fields(fcntl.fcntl(fd, sys_.F_OFD_GETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0)))
        return got[0] == fcntl.F_UNLCK
    try:
        how(fd, fcntl.LOCK_EX)
        return True
    except BlockingIOError:
        return False


def lock_after_children(how, path, turns, ask):
    """Each locks the file, closes it, and says so.  How often it was found locked then."""
    seen = 0
    for _ in range(turns):
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            fd = os.open(path, os.O_RDWR)
            how(fd, fcntl.LOCK_EX)
            os.close(fd)
            os.write(there, b"x")
            os._exit(0)
        os.read(here, 1)
        fd = os.open(path, os.O_RDWR)
        seen += not is_free(how, fd, ask)
        for one in (fd, here, there):
            os.close(one)
        os.waitpid(child, 0)
    return seen


@case
def a_lock_goes_with_the_last_descriptor_of_its_file(test):
    """OFD locks and flocks, within one mount."""
    a, _ = both(test, "f")
    put(a, b"x")
    with Hands(test.site, a, a) as (ann, ben):
        for name, how in (("OFD", ofd_lock), ("flock", flock)):
            mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, a, os.O_RDWR)
            ann.call(how, mine, fcntl.LOCK_EX)
            ann.call(os.close, ann.call(os.dup, mine))
            test.equal(ben.error(how, theirs, fcntl.LOCK_EX), E.EAGAIN, f"{name}: another descriptor is open")
            ann.call(os.close, mine)
            wait_until(lambda: ben.error(how, theirs, fcntl.LOCK_EX) == 0, 30, f"the {name} lock to go")
            ben.call(os.close, theirs)


@case(seconds=120, chance=True)
def a_lock_is_gone_when_the_last_descriptor_of_its_file_is_closed(test):
    """OFD locks and flocks, within one mount: the kernel does not wait until the mount has heard of the close."""
    a, _ = both(test, "f")
    put(a, b"x")
    turns = 2000 if test.long else 150
    with Hands(test.site, a) as (ann,):
        for name, how, ask in (("OFD", ofd_lock, False), ("OFD, asked by F_OFD_GETLK", ofd_lock, True), ("flock", flock, False)):
            test.equal(ann.call(lock_after_children, how, a, turns, ask, seconds=300), 0, f"{name}: how often it was seen")


PAGE = 4096


def locked(fd, kind, function):
    """Under a lock that is not waited for, as data bases do it."""
    while True:
        try:
            record_lock(fd, kind)
            break
        except (BlockingIOError, PermissionError):
            time.sleep(0.0005)
    try:
        return function()
    finally:
        record_lock(fd, fcntl.LOCK_UN)


def pages_of(fd):
    return struct.unpack("Q", os.pread(fd, 8, 0))[0]


def grow(path, pages):
    """The first page says how many there are."""
    fd = os.open(path, os.O_RDWR)

    def step():
        count = pages_of(fd)
        os.pwrite(fd, b"p" * PAGE, count * PAGE)
        os.pwrite(fd, struct.pack("Q", count + 1), 0)
        os.fsync(fd)

    for _ in range(1, pages):
        locked(fd, fcntl.LOCK_EX, step)
        for k in range(6):      # what the other mount has taken away comes back, and the file with it
            os.pread(fd, PAGE, k * PAGE)
    os.close(fd)


def read_ends(path, pages):
    """How often the end of the file was not where it says."""
    fd, wrong, count = os.open(path, os.O_RDWR), 0, 0

    def step():
        size, count = os.fstat(fd).st_size, pages_of(fd)
        return count, size != count * PAGE or len(os.pread(fd, PAGE, (count - 1) * PAGE)) != PAGE

    while count < pages:
        os.pread(fd, 100, 0)    # which takes the file from the other mount, without learning of its size
        count, bad = locked(fd, fcntl.LOCK_SH, step)
        wrong += bad
    os.close(fd)
    return wrong


@case(seconds=120)
def who_has_a_lock_reads_up_to_the_end_the_last_holder_has_made(test):
    pages = 6000 if test.long else 150
    for here, there in sides(test, "f"):
        put(here, struct.pack("Q", 1).ljust(PAGE, b"h"))
        with Hands(test.site, here, there) as (ann, ben):
            ann.start(grow, here, pages)
            test.equal(ben.call(read_ends, there, pages, seconds=500), 0, "reads that ended early, or sizes that were old")
            ann.finish(60)
        os.unlink(here)


def transactions(path, who, count):
    connection = sqlite3.connect(path, timeout=60)
    for n in range(count):
        with connection:
            connection.execute("INSERT INTO t VALUES (?, ?, zeroblob(700))", (who, n))
            connection.execute("UPDATE t SET n = n WHERE who = ? AND n = ?", (who, n // 2))
    connection.close()


@case(seconds=120)
def a_data_base_is_used_by_two_mounts(test):
    """SQLite with its journal, a file that comes and goes."""
    count = 40
    for turn in range(60 if test.long else 1):
        a, b = both(test, f"db{turn}")
        connection = sqlite3.connect(a)
        connection.execute("CREATE TABLE t (who TEXT, n INTEGER, filling BLOB)")
        connection.close()
        with Hands(test.site, a, b) as (ann, ben):
            ann.start(transactions, a, "a", count)
            ben.call(transactions, b, "b", count, seconds=100)
            ann.finish(100)
        for path in (a, b):
            connection = sqlite3.connect(path)
            test.equal(connection.execute("PRAGMA integrity_check").fetchall(), [("ok",)], f"{turn}: the data base")
            test.equal(connection.execute("SELECT count(*) FROM t").fetchall(), [(2 * count,)], f"{turn}: what was inserted")
            connection.close()
