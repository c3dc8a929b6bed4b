"""fallocate, holes, SEEK_DATA and SEEK_HOLE, copy_file_range."""
import errno as E
import os
import random

import syscalls as sys_
from suite import case

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
