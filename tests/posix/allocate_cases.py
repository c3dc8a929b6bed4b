"""fallocate, holes, SEEK_DATA and SEEK_HOLE, copy_file_range."""
import errno as E
import os
import random
import subprocess

import syscalls as sys_
from suite import case, errno_name

DATA, HOLE = os.SEEK_DATA, os.SEEK_HOLE


def make(t, name, data):
    fd = t.open(t.path(name), os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, data, 0)
    return fd


@case(lasting=False)
def plain_fallocate_extends_the_file_and_shows_zeroes(t):
    fd = make(t, "f", b"abc")
    sys_.fallocate(fd, 0, 0, 10000)
    t.equal(os.fstat(fd).st_size, 10000, "size")
    t.equal(os.pread(fd, 20000, 0), b"abc" + bytes(9997))
    sys_.fallocate(fd, 0, 0, 5)
    t.equal(os.fstat(fd).st_size, 10000, "size after a shorter one")
    sys_.fallocate(fd, 0, 20000, 1)
    t.equal(os.fstat(fd).st_size, 20001, "size after one behind the end")


@case
def keep_size_keeps_the_size(t):
    fd = make(t, "f", b"abc")
    sys_.fallocate(fd, sys_.FALLOC_KEEP_SIZE, 0, 100000)
    t.equal(os.fstat(fd).st_size, 3)
    t.equal(os.pread(fd, 10, 0), b"abc")


@case
def punching_a_hole_zeroes_exactly_the_range(t):
    data = random.Random(3).randbytes(300000)
    mode = sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE
    for at, length in ((0, 1), (5, 4091), (4096, 8192), (65000, 2000), (0, 300000), (299999, 1), (250000, 100000)):
        fd = make(t, f"{at}-{length}", data)
        want = bytearray(data)
        end = min(at + length, len(want))
        want[at:end] = bytes(end - at)
        sys_.fallocate(fd, mode, at, length)
        t.equal(os.fstat(fd).st_size, len(data), "size")
        t.equal(os.pread(fd, 400000, 0), bytes(want), f"hole at {at} of {length}")


@case
def punching_works_on_synced_and_unsynced_data_alike(t):
    fd = make(t, "f", b"x" * 100000)
    os.fsync(fd)
    os.pwrite(fd, b"y" * 50000, 50000)
    sys_.fallocate(fd, sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE, 40000, 20000)
    want = b"x" * 40000 + bytes(20000) + b"y" * 40000
    t.equal(os.pread(fd, 200000, 0), want)
    os.fsync(fd)
    t.equal(os.pread(fd, 200000, 0), want, "after fsync")


@case(lasting=False)
def zero_range_zeroes_and_may_extend(t):
    fd = make(t, "f", b"x" * 10000)
    sys_.fallocate(fd, sys_.FALLOC_ZERO_RANGE, 100, 50)
    t.equal(os.pread(fd, 200, 0), b"x" * 100 + bytes(50) + b"x" * 50)
    sys_.fallocate(fd, sys_.FALLOC_ZERO_RANGE, 9000, 5000)
    t.equal(os.fstat(fd).st_size, 14000, "size")
    t.equal(os.pread(fd, 9999, 8999), b"x" + bytes(5000))
    sys_.fallocate(fd, sys_.FALLOC_ZERO_RANGE | sys_.FALLOC_KEEP_SIZE, 13000, 5000)
    t.equal(os.fstat(fd).st_size, 14000, "size with KEEP_SIZE")


@case
def fallocate_refuses_what_makes_no_sense(t):
    fd = make(t, "f", b"x")
    t.fails(E.EINVAL, sys_.fallocate, fd, 0, 0, 0)
    t.fails(E.EINVAL, sys_.fallocate, fd, 0, -1, 10)
    t.fails(E.EINVAL, sys_.fallocate, fd, 0, 0, -1)
    t.fails((E.EOPNOTSUPP, E.EINVAL), sys_.fallocate, fd, sys_.FALLOC_PUNCH_HOLE, 0, 10)
    t.fails(E.EBADF, sys_.fallocate, t.open(t.path("f")), 0, 0, 10)
    t.fails((E.EISDIR, E.EBADF, E.ENODEV), sys_.fallocate, t.open(t.dir), 0, 0, 10)


@case
def fallocate_moves_mtime_and_ctime(t):
    for name, mode in (("extend", 0), ("punch", sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE), ("zero", sys_.FALLOC_ZERO_RANGE)):
        fd = make(t, name, b"x" * 100)
        before = os.fstat(fd)
        t.tick()
        sys_.fallocate(fd, mode, 0, 1000)
        after = os.fstat(fd)
        t.true(after.st_mtime_ns > before.st_mtime_ns, f"{name} moves mtime")
        t.true(after.st_ctime_ns > before.st_ctime_ns, f"{name} moves ctime")


@case
def data_and_holes_are_found(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    block = 1 << 20
    os.pwrite(fd, b"d" * 65536, 4 * block)
    os.ftruncate(fd, 10 * block)
    os.fsync(fd)
    t.equal(os.lseek(fd, 0, DATA), 4 * block, "first data")
    t.equal(os.lseek(fd, 0, HOLE), 0, "hole at once")
    t.equal(os.lseek(fd, 4 * block, DATA), 4 * block, "data at data")
    t.equal(os.lseek(fd, 4 * block, HOLE), 4 * block + 65536, "hole after it")
    t.fails(E.ENXIO, os.lseek, fd, 5 * block, DATA)
    t.equal(os.lseek(fd, 9 * block, HOLE), 9 * block, "hole at a hole")
    t.fails(E.ENXIO, os.lseek, fd, 10 * block, HOLE)
    t.fails(E.ENXIO, os.lseek, fd, 10 * block, DATA)
    t.fails(E.EINVAL, os.lseek, fd, -1, os.SEEK_SET)


@case
def a_full_file_ends_with_a_virtual_hole(t):
    fd = make(t, "f", b"d" * 5000)
    os.fsync(fd)
    t.equal(os.lseek(fd, 0, HOLE), 5000)
    t.equal(os.lseek(fd, 4999, DATA), 4999)


def unit_of(t):
    """Of what bytes SEEK_DATA and SEEK_HOLE tell, as programs find it: where data begins that is written a bit further on each time."""
    fd = t.open(t.path("unit"), os.O_CREAT | os.O_RDWR, 0o644)
    for shift in range(30):
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"x", 1 << shift)
        if os.lseek(fd, 0, DATA):
            return os.lseek(fd, 0, DATA)
    return 0


def sought(fd, at, whence):
    try:
        return os.lseek(fd, at, whence)
    except OSError as error:
        return errno_name(error.errno)


def check_seeks(t, fd, ranges, unit, what):
    """ranges: those that were written.  A unit with a byte of them is data, all others are holes, as is what follows the end."""
    size = os.fstat(fd).st_size
    full = sorted({k for start, end in ranges for k in range(start // unit, (end - 1) // unit + 1)})
    near = {0, 1, size - 1, size, size + 1} | {k * unit + d for f in full for k in (f, f + 1) for d in (-1, 0, 1)}
    for at in sorted(a for a in near if a >= 0):
        if at >= size:
            data = hole = "ENXIO"
        else:
            hole = at // unit
            while hole in full:
                hole += 1
            hole = min(size, max(at, hole * unit))
            data = next((max(at, k * unit) for k in full if k >= at // unit), "ENXIO")
        t.equal((sought(fd, at, DATA), sought(fd, at, HOLE)), (data, hole), f"{what}: data and hole from {at} of {size}, by units of {unit}")


@case
def data_and_holes_come_in_units_of_a_block(t):
    unit = unit_of(t)
    if not t.true(unit >= 512 and not unit & (unit - 1), f"{unit} bytes are a unit that programs can take for a block"):
        return
    byte = ((0, 1),)
    shapes = {"empty": (), "a byte": byte, "full": ((0, 2 * unit + 100),), "hole, data": ((2 * unit, 2 * unit + 8),),
              "hole, data, hole, data": ((unit, 2 * unit), (3 * unit, 4 * unit)),
              "small ones": ((3, 4), (unit - 1, unit + 1), (5 * unit - 1, 5 * unit), (9 * unit + 7, 9 * unit + 8)),
              "in one unit": ((unit + 10, unit + 20), (unit + 100, unit + 110)), "far": ((0, 16 * unit), ((8 << 30) - 16 * unit, 8 << 30))}
    for tail in (None, 4 * unit, 3 * unit + 1, 1 << 33):
        for name, ranges in shapes.items():
            fd = t.open(t.path(f"{name}-{tail}"), os.O_CREAT | os.O_RDWR, 0o644)
            for start, end in ranges:
                os.pwrite(fd, b"d" * (end - start), start)
            if tail and tail > os.fstat(fd).st_size:
                os.ftruncate(fd, tail)
            check_seeks(t, fd, ranges, unit, name)
            if name != "far":
                os.fsync(fd)
                check_seeks(t, fd, ranges, unit, f"{name}, synced")


@case
def what_is_punched_or_cut_leaves_whole_units(t):
    unit = unit_of(t)
    if not t.true(unit, "data begins somewhere"):
        return
    fd = make(t, "f", b"d" * (8 * unit))
    sys_.fallocate(fd, sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE, unit, unit)
    check_seeks(t, fd, ((0, unit), (2 * unit, 8 * unit)), unit, "a unit punched")
    sys_.fallocate(fd, sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE, 3 * unit + 1, 2 * unit)
    check_seeks(t, fd, ((0, unit), (2 * unit, 4 * unit), (5 * unit, 8 * unit)), unit, "parts of units are data")
    t.equal(os.pread(fd, 3 * unit, 3 * unit), b"d" + bytes(2 * unit) + b"d" * (unit - 1), "only what was punched is gone")
    os.ftruncate(fd, 5 * unit + 5)
    os.ftruncate(fd, 8 * unit)
    check_seeks(t, fd, ((0, unit), (2 * unit, 4 * unit), (5 * unit, 5 * unit + 5)), unit, "cut and extended")


@case
def sparse_copies_are_the_same(t):
    """cp and tar find by SEEK_DATA and SEEK_HOLE what is to be copied."""
    rng = random.Random(11)
    want = bytearray(3 << 20)
    fd = t.open(t.path("source"), os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, len(want))
    for _ in range(40):
        at, length = rng.randrange(len(want) - 9000), rng.choice((1, 2, 500, 4096, 8999))
        want[at:at + length] = data = rng.randbytes(length)
        os.pwrite(fd, data, at)
    for how in (["cp", "--sparse=auto"], ["cp", "--sparse=always"], ["cp", "--reflink=auto"], ["cp", "--reflink=never"]):
        subprocess.run([*how, t.path("source"), t.path("copy")], check=True)
        t.content(t.path("copy"), bytes(want))
        os.unlink(t.path("copy"))
    os.mkdir(t.path("out"))
    subprocess.run(["tar", "-C", t.dir, "-S", "-cf", t.path("archive"), "source"], check=True)
    subprocess.run(["tar", "-C", t.path("out"), "-xf", t.path("archive")], check=True)
    t.content(t.path("out", "source"), bytes(want))


@case(lasting=False)
def preallocated_files_have_the_size_they_were_given(t):
    for length in (1, 511, 512, 513, 1000, 4095, 4097, 1000001):
        for name, calls, want in (("once", ((0, 0, length),), length), ("behind", ((0, 5000, length),), 5000 + length),
                                  ("zeroed", ((sys_.FALLOC_ZERO_RANGE, 0, length),), length),
                                  ("kept", ((sys_.FALLOC_KEEP_SIZE, 0, length),), 0)):
            fd = t.open(t.path(f"{name}-{length}"), os.O_CREAT | os.O_RDWR, 0o644)
            for call in calls:
                sys_.fallocate(fd, *call)
            t.equal(os.fstat(fd).st_size, want, f"size of {name} {length}")
            os.fsync(fd)
            t.equal(os.stat(t.path(f"{name}-{length}")).st_size, want, f"size of {name} {length}, synced")
            t.equal(os.pread(fd, want + 10, 0), bytes(want), f"content of {name} {length}")


@case(only="epochfs")
def preallocated_space_costs_nothing(t):
    """Neither of these sets space aside; they are refused if the volume could not take what is to be written."""
    fd = make(t, "f", b"x" * 5000)
    os.fsync(fd)
    blocks = os.fstat(fd).st_blocks
    t.equal(blocks, 10, "what was written, in 512s")
    for mode in (0, sys_.FALLOC_KEEP_SIZE, sys_.FALLOC_ZERO_RANGE, sys_.FALLOC_ZERO_RANGE | sys_.FALLOC_KEEP_SIZE):
        sys_.fallocate(fd, mode, 1 << 20, 100000)
        t.equal(os.fstat(fd).st_blocks, blocks, f"blocks after mode {mode:#x}")


@case
def sparse_files_cost_what_was_written(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, 1 << 40)
    os.pwrite(fd, b"x" * 4096, 1 << 39)
    os.fsync(fd)
    st = os.fstat(fd)
    t.equal(st.st_size, 1 << 40, "size")
    t.true(st.st_blocks * 512 < 1 << 20, "blocks stay small")
    t.equal(os.pread(fd, 4096, (1 << 39) - 2048), bytes(2048) + b"x" * 2048)


@case
def sixteen_tebibytes_are_a_valid_size(t):
    size = (16 << 40) - 4096
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"the end", size - 7)
    t.equal(os.fstat(fd).st_size, size)
    t.equal(os.pread(fd, 100, size - 7), b"the end")
    t.equal(os.pread(fd, 10, 8 << 40), bytes(10))
    os.ftruncate(fd, 3)
    t.equal(os.pread(fd, 10, 0), bytes(3))


@case
def copy_file_range_copies_within_and_between_files(t):
    data = random.Random(9).randbytes(500000)
    source = make(t, "source", data)
    target = make(t, "target", b"")
    t.equal(sys_.copy_file_range(source, 0, target, 0, 500000), 500000)
    t.equal(os.pread(target, 600000, 0), data, "whole")
    t.equal(sys_.copy_file_range(source, 1000, target, 700000, 70000), 70000)
    t.equal(os.pread(target, 70000, 700000), data[1000:71000], "a part, behind the end")
    t.equal(os.pread(target, 200000, 500000), bytes(200000), "a hole in between")
    t.equal(sys_.copy_file_range(source, 490000, target, 0, 100000), 10000, "short at the end of the source")
    t.equal(os.pread(target, 12000, 0), data[490000:] + data[10000:12000])
    t.equal(sys_.copy_file_range(source, 500000, target, 0, 10), 0, "behind the end: nothing")
    t.equal(sys_.copy_file_range(source, 0, source, 600000, 1000), 1000, "within a file")
    t.equal(os.pread(source, 1000, 600000), data[:1000])
    t.fails(E.EINVAL, sys_.copy_file_range, source, 0, source, 500, 1000)


@case
def a_copy_does_not_follow_later_changes(t):
    source, target = make(t, "source", b"a" * 100000), make(t, "target", b"")
    sys_.copy_file_range(source, 0, target, 0, 100000)
    os.pwrite(source, b"b" * 50000, 0)
    t.equal(os.pread(target, 100000, 0), b"a" * 100000, "copy after the source changed")
    os.pwrite(target, b"c" * 10, 99990)
    t.equal(os.pread(source, 100000, 0), b"b" * 50000 + b"a" * 50000, "source after the copy changed")
    os.unlink(t.path("source"))
    t.equal(os.pread(target, 100000, 0), b"a" * 99990 + b"c" * 10, "copy after the source went")


@case
def copy_file_range_checks_its_descriptors(t):
    source, target = make(t, "source", b"a" * 100), make(t, "target", b"")
    t.fails(E.EBADF, sys_.copy_file_range, source, 0, t.open(t.path("target")), 0, 10)
    t.fails(E.EBADF, sys_.copy_file_range, t.open(t.path("source"), os.O_WRONLY), 0, target, 0, 10)
    t.fails(E.EISDIR, sys_.copy_file_range, t.open(t.dir), 0, target, 0, 10)
