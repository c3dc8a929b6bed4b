"""A relaxed volume: what is looked at may be old, within its bounds; what is changed is changed as on a strict one."""
import fcntl
import os
import time

from company import Company, Hands, both, put, take
from locking import KINDS
from suite import case
from waiting import wait_until

BOUND = 1.0         # how old names and attributes may be
STORED_WITHIN = 1.0     # how long a writer may keep what nobody has asked it to store
SLACK = 4.0         # for a machine that is busy with something else


def relaxed(test):
    """Sets a and b of the test to two mounts of such a volume."""
    company = Company(test.site, 2, volume=("--block-size", "64KiB", "--consistency", "relaxed"))
    test.a, test.b = company.points
    return company


def seen_within(test, bound, look, wanted, what):
    """Polls; the last look that saw something else must have begun before the bound was over."""
    began = last = time.monotonic()

    def new():
        nonlocal last
        at = time.monotonic()
        if look() == wanted:
            return True
        last = at
        return False

    wait_until(new, bound + SLACK + 10, what)
    test.true(last - began <= bound + SLACK, f"{what}: seen as it was for {last - began:.2f} s")


def end(test, company):
    test.equal(company.problems(), [], "what is wrong at the end")


@case(seconds=60, only="epochfs")
def names_and_attributes_are_at_most_a_second_old(test):
    company = relaxed(test)
    a, b = both(test, "f")
    put(a, b"x")
    test.equal(os.stat(b).st_mode & 0o777, 0o644, "mode at first")
    os.chmod(a, 0o600)
    seen_within(test, BOUND, lambda: os.stat(b).st_mode & 0o777, 0o600, "the new mode")
    os.rename(a, a + "2")
    seen_within(test, BOUND, lambda: os.path.exists(b), False, "the old name to be gone")
    test.true(os.path.exists(b + "2"), "the new name, which was never looked for before")
    end(test, company)


@case(seconds=60, only="epochfs")
def a_missing_name_is_found_as_soon_as_it_is_there(test):
    company = relaxed(test)
    a, b = both(test, "f")
    for turn in range(50):
        test.true(not os.path.exists(f"{b}{turn}"), f"{turn}: not there yet")
        put(f"{a}{turn}", b"x")
        test.true(os.path.exists(f"{b}{turn}"), f"{turn}: there")
    test.equal(sorted(os.listdir(test.b)), sorted(os.listdir(test.a)), "listings")
    end(test, company)


@case(seconds=60, only="epochfs")
def what_was_synced_is_read_by_who_opens_the_file_later(test):
    company = relaxed(test)
    a, b = both(test, "f")
    put(a, b"old " * 1000, sync=True)
    test.equal(take(b), b"old " * 1000, "at first")
    put(a, b"new, and longer " * 1000, flags=os.O_WRONLY, sync=True)
    seen_within(test, BOUND, lambda: take(b), b"new, and longer " * 1000, "what was synced")
    put(a, b"at last " * 3000, flags=os.O_WRONLY)
    seen_within(test, BOUND + STORED_WITHIN, lambda: take(b), b"at last " * 3000, "what was not synced")
    end(test, company)


@case(seconds=60, only="epochfs")
def appends_and_overwrites_of_both_are_all_there(test):
    company = relaxed(test)
    a, b = both(test, "f")
    fds = [os.open(a, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(b, os.O_WRONLY | os.O_APPEND)]
    for turn in range(200):
        os.write(fds[turn % 2], b"%05d\n" % turn)
    for fd in fds:
        os.fsync(fd)
        os.close(fd)
    wanted = b"".join(b"%05d\n" % turn for turn in range(200))
    seen_within(test, BOUND, lambda: take(a), wanted, "all records on a")
    seen_within(test, BOUND, lambda: take(b), wanted, "all records on b")
    fds = [os.open(a, os.O_RDWR), os.open(b, os.O_RDWR)]
    for turn in range(40):     # half a page each, side by side
        os.pwrite(fds[turn % 2], b"%02d" % turn * 1024, turn * 2048)
    for fd in fds:
        os.fsync(fd)
    test.equal(os.pread(fds[0], 40 * 2048, 0), b"".join(b"%02d" % turn * 1024 for turn in range(40)), "who may write reads all")
    for fd in fds:
        os.close(fd)
    end(test, company)


@case(seconds=60, only="epochfs", chance=True)
def locks_exclude_and_open_files_outlive_their_names(test):
    company = relaxed(test)
    a, b = both(test, "f")
    put(a, b"kept", sync=True)
    for name, how in KINDS.items():
        with Hands(test.site, a, b) as (ann, ben):
            mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDWR)
            ann.call(how, mine, fcntl.LOCK_EX)
            test.true(ben.error(how, theirs, fcntl.LOCK_EX) != 0, f"{name}: exclusive against exclusive")
            ann.call(how, mine, fcntl.LOCK_UN)
            test.equal(ben.error(how, theirs, fcntl.LOCK_EX), 0, f"{name}: once free")
    fd = os.open(b, os.O_RDONLY)
    os.unlink(a)
    seen_within(test, BOUND, lambda: os.path.exists(b), False, "the name to be gone")
    test.equal(os.pread(fd, 10, 0), b"kept", "what is open")
    os.close(fd)
    end(test, company)
