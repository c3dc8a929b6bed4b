"""Read-only mounts (b), which hear of no open and no close, beside one that writes (a)."""
import fcntl
import os
import random
import signal
import threading

from company import Company, Hands, both, map_file, map_read, put, take, take_open
from suite import case
from waiting import TookTooLong, wait_until

PAGE = 4096


def beside(test, options=("--ro",), name=""):
    """Sets a and b of the test to a mount that writes and one that does not."""
    company = Company(test.site, 1, name=name)
    company.options = list(options)
    company.join(f"mount{name}-b")
    test.a, test.b = company.points
    return company


def end(test, company):
    test.equal(company.problems(), [], "what is wrong at the end")


@case(seconds=60, only="epochfs")
def a_reader_sees_what_is_written_at_once(test):
    company = beside(test)
    a, b = both(test, "f")
    put(a, b"0" * 3 * PAGE)
    with Hands(test.site, b) as (ben,):
        fd = ben.call(os.open, b, os.O_RDONLY)
        mapped = ben.call(map_file, fd, 3 * PAGE, False)
        for turn in range(100):
            at, data = test.rng.randrange(3 * PAGE - 5), b"%05d" % turn
            put_at(a, data, at)
            test.equal(ben.call(os.pread, fd, 5, at), data, f"turn {turn}: read")
            test.equal(ben.call(map_read, mapped, at, at + 5), data, f"turn {turn}: mapped")
            test.equal(take(b)[at:at + 5], data, f"turn {turn}: opened again")
    for size in (PAGE, 7, 0, 70_000):
        os.truncate(a, size)
        test.equal(os.stat(b).st_size, size, "size")
        test.equal(len(take(b)), size, "bytes to be read")
    end(test, company)


def put_at(path, data, at):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, data, at)
    os.close(fd)


@case(seconds=60, only="epochfs")
def what_was_read_before_anybody_could_write_is_not_taken_for_true_afterwards(test):
    """Read under the lease of the volume, closed, with pages in the kernel; then somebody comes who writes."""
    company = Company(test.site, 1)
    names = [f"f{k}" for k in range(300)]
    for name in names:
        put(os.path.join(company.points[0], name), b"old " * 2000)
    company.mounts.pop().umount()
    company.options = ["--ro"]
    reader = company.join("mount-b").point
    for _ in range(2):
        for name in names:
            test.equal(take(os.path.join(reader, name)), b"old " * 2000, f"{name} at first")
    held = test.open(os.path.join(reader, "f7"))
    test.equal(os.pread(held, 4, 0), b"old ", "the one that stays open")
    company.options = []
    writer = company.join("mount-a").point
    for name in names:
        put_at(os.path.join(writer, name), b"new ", 4000)
        test.equal(take(os.path.join(reader, name))[3996:4008], b"old new old ", f"{name} afterwards")
    test.equal(os.pread(held, 12, 3996), b"old new old ", "the one that stayed open")
    test.close(held)
    end(test, company)


@case(seconds=60, only="epochfs")
def a_file_that_is_read_outlives_its_name(test):
    company = beside(test)
    a, b = both(test, "f")
    put(a, b"kept" * 20_000)
    fd = test.open(b)
    test.equal(os.pread(fd, 4, 0), b"kept", "at first")
    os.unlink(a)
    put(a, b"another")
    test.equal(take_open(fd), b"kept" * 20_000, "what is open")
    test.equal(take(b), b"another", "what has the name")
    test.close(fd)
    end(test, company)


@case(seconds=90, only="epochfs")
def many_files_are_read_while_they_are_changed(test):
    """More than are noted one by one for long: each is 64 KiB of its number and its version."""
    company = beside(test)
    versions, stop = {k: 0 for k in range(60)}, threading.Event()
    for k in versions:
        put(os.path.join(test.a, f"f{k}"), content(k, 0))
    problems = []

    def read(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            k = rng.randrange(60)
            least = versions[k]
            data = take(os.path.join(test.b, f"f{k}"))
            number, version = (int(x) for x in data[:20].split())
            if number != k or version < least or data != content(k, version):
                problems.append(f"f{k}: {data[:20]}, at least version {least} was there")

    readers = [threading.Thread(target=read, args=(f"{test.seed} {n}",)) for n in range(4)]
    for reader in readers:
        reader.start()
    for turn in range(300):
        k = test.rng.randrange(60)
        temporary = os.path.join(test.a, "temporary")
        put(temporary, content(k, versions[k] + 1))
        os.rename(temporary, os.path.join(test.a, f"f{k}"))
        versions[k] += 1
    stop.set()
    for reader in readers:
        reader.join()
    test.equal(problems[:3], [], "what readers saw")
    end(test, company)


def content(number, version):
    return b"%9d %9d\n" % (number, version) * 3277


@case(seconds=60, only="epochfs")
def locks_are_shared_only_if_asked_for(test):
    for options, shared in ((("--ro",), False), (("--ro", "--shared-locks"), True)):
        company = beside(test, options, name=f"-{len(options)}")
        a, b = both(test, "f")
        put(a, b"x")
        with Hands(test.site, a, b) as (ann, ben):
            mine, theirs = ann.call(os.open, a, os.O_RDWR), ben.call(os.open, b, os.O_RDONLY)
            ann.call(fcntl.flock, mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            refused = ben.error(fcntl.flock, theirs, fcntl.LOCK_SH | fcntl.LOCK_NB) != 0
            test.equal(refused, shared, f"{' '.join(options)}: a lock of the other mount is seen")
        end(test, company)


@case(seconds=60, only="epochfs")
def a_server_that_restarts_is_told_what_is_read(test):
    company = beside(test)
    a, b = both(test, "f")
    put(a, b"old " * 20_000, sync=True)
    fd = test.open(b)
    test.equal(os.pread(fd, 4, 0), b"old ", "at first")
    company.server.kill()
    company.server.start()
    put_at(a, b"new ", 0)
    test.equal(os.pread(fd, 8, 0), b"new old ", "after the restart")
    os.unlink(a)
    test.equal(take_open(fd)[4:], b"old " * 19_999, "without its name")
    test.close(fd)
    end(test, company)


TRIES = 3       # other tests have the kernel of this machine drop its caches, and what is to be there is gone


def look(path):
    """(size, content), as a program gets them that opens the file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(fd).st_size, take_open(fd)
    finally:
        os.close(fd)


def look_without(test, mount, path):
    """What is seen of a file that was read while its mount is frozen, or where that waits for the mount."""
    with Hands(test.site, mount.point) as (ben,):
        for _ in range(2):
            take(path)
        mount.freeze()
        try:
            return ben.call(look, path, seconds=5)
        except TookTooLong as error:
            return str(error)
        finally:
            mount.process.send_signal(signal.SIGCONT)


@case(seconds=60, only="epochfs")
def what_was_read_is_opened_and_read_again_without_a_message(test):
    company = Company(test.site, 1)
    contents = {"small": b"one of a pack", "large": b"larger" * 50_000}
    for name, data in contents.items():
        put(os.path.join(company.points[0], name), data)
    company.mounts.pop().umount()
    company.options = ["--ro"]
    mount = company.join("mount-b")
    wait_until(lambda: company.server.json("status", mount.point)["alone"], 20, "the lease of the volume")
    for name, data in contents.items():
        for _ in range(TRIES):
            seen = look_without(test, mount, os.path.join(mount.point, name))
            if seen == (len(data), data):
                break
        test.equal(seen, (len(data), data), name)
    end(test, company)
