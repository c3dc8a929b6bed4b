"""flock, fcntl and OFD locks over several mounts."""
import errno as E
import fcntl
import os
import time

import syscalls as sys_
from company import VOLUME, Hands, both, put
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
