"""What one mount has written, the other reads: step by step, on two mounts (a and b)."""
import mmap
import os
import random

import syscalls as sys_
from company import Company, Hands, both, map_file, map_read, map_write, put, sides, take, take_open
from suite import case

PAGE = 4096

@case
def what_was_closed_is_read_by_the_other(test):
    for turn in range(20):
        here, there = sides(test, "f")[turn % 2]
        data = test.rng.randbytes(test.rng.choice([1, 100, PAGE, 70_000, 300_000]))
        put(here, data)
        test.equal(take(there), data, f"turn {turn}: {test.company.where(there)} after close on the other mount")
        test.equal(os.stat(there).st_size, len(data), f"turn {turn}: size")


@case
def what_was_written_and_not_closed_is_read_by_the_other(test):
    for here, there in sides(test, "f"):
        fd = test.open(here, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for turn in range(10):
            os.write(fd, b"%09d\n" % turn)
            test.equal(take(there)[-10:], b"%09d\n" % turn, f"turn {turn} on {test.company.where(there)}")
        test.close(fd)


@case
def open_files_see_the_others_overwrites(test):
    """Both hold the file open all the time: pages in a kernel's cache must go when the other one writes."""
    a, b = both(test, "f")
    put(a, b"0" * 3 * PAGE)
    fds = [test.open(a, os.O_RDWR), test.open(b, os.O_RDWR)]
    for turn in range(40):
        data = b"%05d" % turn
        at = test.rng.randrange(3 * PAGE - 5)
        os.pwrite(fds[turn % 2], data, at)
        test.equal(os.pread(fds[1 - turn % 2], 5, at), data, f"turn {turn}: at {at}, written on {'ab'[turn % 2]}")
    test.equal(take_open(fds[0]), take_open(fds[1]), "the whole content on both")


def read_for_ever(path, pages, seed):
    """Single pages, none of which the kernel reads ahead or keeps for long."""
    rng, fd = random.Random(seed), os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    while True:
        page = rng.randrange(pages)
        os.pread(fd, PAGE, page * PAGE)
        if rng.random() < 0.2:
            os.posix_fadvise(fd, page * PAGE, PAGE, os.POSIX_FADV_DONTNEED)


@case(seconds=120)
def overwrites_go_through_and_are_seen_while_others_read_without_a_pause(test):
    a, b = both(test, "f")
    for pages in (1, 50, 3000):
        put(a, bytes(pages * PAGE))
        fd, seen = test.open(a, os.O_RDWR), test.open(b, os.O_RDONLY)
        with Hands(test.site, *[f"reader-{k}" for k in range(16)]) as readers:
            for k, reader in enumerate(readers):
                reader.start(read_for_ever, b, pages, k)
            for turn in range(25):
                data, at = b"%05d" % turn, test.rng.randrange(pages) * PAGE
                os.pwrite(fd, data, at)
                test.equal(os.pread(seen, 5, at), data, f"{pages} pages, turn {turn}: at {at}")
            test.true(not any(reader.done() for reader in readers), f"{pages} pages: nobody stopped reading")
        test.close(fd)
        test.close(seen)


@case
def a_mapping_sees_the_others_overwrites(test):
    a, b = both(test, "f")
    put(a, bytes(2 * PAGE))
    with Hands(test.site, a, b) as (ann, ben):
        here = ann.call(os.open, a, os.O_RDWR)
        there = ben.call(os.open, b, os.O_RDONLY)
        view = ben.call(map_file, there, 2 * PAGE, False)
        for turn in range(15):
            data = b"%05d" % turn
            at = test.rng.randrange(2 * PAGE - 5)
            ann.call(os.pwrite, here, data, at)
            test.equal(ben.call(map_read, view, at, at + 5), data, f"turn {turn}: at {at} through the mapping on b")
            test.equal(ben.call(os.pread, there, 5, at), data, f"turn {turn}: at {at} by read on b")


@case
def a_store_into_a_mapping_is_read_by_the_other(test):
    """Without msync: the pages are dirty in the kernel of a, and only the recall brings them out."""
    a, b = both(test, "f")
    put(a, bytes(2 * PAGE))
    with Hands(test.site, a, b) as (ann, ben):
        views = [ann.call(map_file, ann.call(os.open, a, os.O_RDWR), 2 * PAGE), ben.call(map_file, ben.call(os.open, b, os.O_RDWR), 2 * PAGE)]
        there = ben.call(os.open, b, os.O_RDONLY)
        for turn in range(15):
            data = b"%05d" % turn
            at = test.rng.randrange(2 * PAGE - 5)
            ann.call(map_write, views[0], at, data)
            test.equal(ben.call(os.pread, there, 5, at), data, f"turn {turn}: at {at} by read of an open file on b")
            test.equal(ben.call(take, b)[at:at + 5], data, f"turn {turn}: at {at} by a new open on b")
            ben.call(map_write, views[1], at, data[::-1])
            test.equal(ann.call(map_read, views[0], at, at + 5), data[::-1], f"turn {turn}: at {at} from mapping to mapping")


@case
def two_writers_of_one_page_lose_nothing(test):
    """Each has its own bytes in the same pages; a write of a whole old page would undo the other's."""
    a, b = both(test, "f")
    put(a, bytes(PAGE))
    fds = [test.open(a, os.O_RDWR), test.open(b, os.O_RDWR)]
    for at in range(0, PAGE, 64):
        side = at // 64 % 2
        os.pwrite(fds[side], b"%d" % (side + 1) * 64, at)
    want = (b"1" * 64 + b"2" * 64) * (PAGE // 128)
    test.equal(take_open(fds[0]), want, "on a")
    test.equal(take_open(fds[1]), want, "on b")


@case
def truncating_moves_the_end_for_the_other(test):
    for here, there in sides(test, "f"):
        put(here, b"x" * 10_000)
        fd, mine = test.open(there, os.O_RDWR), test.open(here, os.O_RDWR)
        test.equal(len(take_open(fd)), 10_000, "before")
        for size in (5000, 5001, 0, 20_000, 123):
            os.ftruncate(mine, size)
            test.equal(os.fstat(fd).st_size, size, f"size by the other's open file after truncate to {size}")
            test.equal(os.lseek(fd, 0, os.SEEK_END), size, f"SEEK_END after truncate to {size}")
            test.equal(len(take_open(fd)), size, f"bytes read by it after truncate to {size}")
        test.equal(take_open(fd), take(here), "the same bytes")
        os.truncate(here, 10)
        test.equal(os.pread(fd, 100, 0), bytes(10), "what came back after 0 and 123 is zero")
        put(there, b"")
        test.equal(os.fstat(mine).st_size, 0, "O_TRUNC on the other")


@case
def a_cut_and_longer_file_has_zeros_for_the_other(test):
    a, b = both(test, "f")
    put(a, b"x" * PAGE)
    fd = test.open(b, os.O_RDWR)
    test.equal(os.pread(fd, PAGE, 0), b"x" * PAGE, "before")
    os.truncate(a, 10)
    os.truncate(a, PAGE)
    test.equal(os.pread(fd, PAGE, 0), b"x" * 10 + bytes(PAGE - 10), "after truncate to 10 and back on a")
    mine = test.open(a, os.O_RDWR)
    os.pwrite(mine, b"y" * PAGE, 0)
    sys_.fallocate(mine, sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE, 100, 1000)
    test.equal(os.pread(fd, PAGE, 0), b"y" * 100 + bytes(1000) + b"y" * (PAGE - 1100), "after punching a hole on a")


# -- appending

@case
def appended_lines_alternate(test):
    a, b = both(test, "closed")
    for turn in range(60):
        put((a, b)[turn % 2], b"line %d\n" % turn, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    want = b"".join(b"line %d\n" % turn for turn in range(60))
    test.equal(take(a), want, "opened each time, read on a")
    test.equal(take(b), want, "opened each time, read on b")


@case
def appended_lines_alternate_in_open_files(test):
    a, b = both(test, "open")
    fds = [test.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) for path in (a, b)]
    for turn in range(100):
        os.write(fds[turn % 2], b"line %d\n" % turn)
        if turn % 7 == 0:
            test.equal(os.fstat(fds[turn % 2]).st_size, os.fstat(fds[1 - turn % 2]).st_size, f"turn {turn}: sizes on both")
    want = b"".join(b"line %d\n" % turn for turn in range(100))
    test.equal(take_open(fds[0]), want, "read on a")
    test.equal(take_open(fds[1]), want, "read on b")


def append_records(path, writer, count, seed):
    """In a hand: each record in one write call, of a size of its own, saying whose it is and which."""
    rng = random.Random(f"{seed} {writer}")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in range(count):
        body = b"%d" % writer * rng.choice([1, 10, 100, 1000, 5000, 20_000])
        record = b"<%d %d %d %s>" % (writer, number, len(body), body)
        if os.write(fd, record) != len(record):
            raise AssertionError(f"writer {writer}: record {number} of {len(record)} bytes was written in part")
        if number % 17 == 0:
            os.close(fd)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.close(fd)
    return count


def parse_records(data):
    """[(writer, number)] in the order they stand; raises ValueError with the place where it is none."""
    found, at = [], 0
    while at < len(data):
        head = data[at:at + 40].split(b" ", 3)
        try:
            writer, number, length = int(head[0].removeprefix(b"<")), int(head[1]), int(head[2])
        except (ValueError, IndexError):
            raise ValueError(f"no record at {at}: {data[at:at + 60]!r}") from None
        start = at + len(b"<%d %d %d " % (writer, number, length))
        if not data.startswith(b"<", at) or data[start:start + length + 1] != b"%d" % writer * length + b">":
            raise ValueError(f"record {number} of writer {writer} at {at} is torn: {data[at:at + 60]!r} ... "
                             f"{data[start + length - 20:start + length + 20]!r}")
        found.append((writer, number))
        at = start + length + 1
    return found


@case(seconds=90)
def four_processes_append_and_no_record_is_lost(test):
    paths = [os.path.join(folder, "log") for folder in test.folders[:2]] * 2
    count = 1000 if test.long else 300
    put(paths[0], b"")
    with Hands(test.site, *[f"appender-{k}" for k in range(4)]) as hands:
        for k, hand in enumerate(hands):
            hand.start(append_records, paths[k], k, count, test.seed)
        for hand in hands:
            hand.finish(80)
        for path in paths[:2]:
            found = parse_records(take(path))
            for k in range(4):
                test.equal([n for w, n in found if w == k], list(range(count)),
                           f"records of appender {k} (on {'ab'[k % 2]}) as read on {test.company.where(path)}")


def take_mapped(path):
    """Through a private mapping, whose page faults arrive with the handle of the file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as memory:
            return bytes(memory)
    finally:
        os.close(fd)


def change_access_times(test, option, reading=take):
    company = Company(test.site, 2, options=[option], name=f"-{option.strip('-')}-{reading.__name__}")
    files = [[os.path.join(point, f"f{k}") for k in range(60)] for point in company.points]
    for path in files[0]:
        put(path, bytes(20 * PAGE), sync=True)
    with Hands(test.site, "a", "b") as hands:
        for turn in range(len(files[0])):
            for hand, paths in zip(hands, files):
                hand.start(reading, paths[turn])
            for hand in hands:
                test.equal(len(hand.finish(20)), 20 * PAGE, f"file {turn}, read on {hand.name}")
    test.true(all(os.stat(path).st_atime_ns > os.stat(path).st_mtime_ns for path in files[1]), "access times have changed")
    test.equal(company.problems(), [], "what is wrong at the end")


@case(seconds=120, only="epochfs")
def readers_who_change_access_times_do_not_wait_for_each_other(test):
    """With --relatime the first read of a file changes it, which others who have read it must forget first."""
    change_access_times(test, "--relatime")


@case(seconds=120, only="epochfs")
def readers_who_change_them_each_time_do_not_wait_either(test):
    """With --strictatime every read does, and is answered after that."""
    change_access_times(test, "--strictatime")


@case(seconds=120, only="epochfs")
def readers_of_mapped_files_who_change_them_do_not_wait_either(test):
    """A page fault holds pages, also of a file whose reads go past the kernel's pages."""
    change_access_times(test, "--strictatime", take_mapped)
