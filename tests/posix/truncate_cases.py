"""truncate and ftruncate, both ways."""
import errno as E
import os
import random
import stat

import syscalls as sys_
from suite import case
from users import ANNA, BEN


@case
def shrinking_cuts_and_growing_shows_zeroes(t):
    data = random.Random(1).randbytes(200000)
    path = t.file("file", data)
    for size in (199999, 131072, 70000, 65536, 4097, 4096, 1, 0):
        os.truncate(path, size)
        t.size(path, size)
        t.content(path, data[:size])


@case
def what_was_cut_off_does_not_come_back(t):
    path = t.file("file", b"secret" * 20000)
    os.truncate(path, 1000)
    os.truncate(path, 120000)
    t.content(path, (b"secret" * 20000)[:1000] + bytes(119000))
    os.truncate(path, 999)
    fd = t.open(path, os.O_RDWR)
    os.pwrite(fd, b"z", 5000)
    t.content(path, (b"secret" * 20000)[:999] + bytes(4001) + b"z")


@case
def cut_within_a_page_and_grow_by_ftruncate(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"Q" * 8192)
    for cut in (8191, 5000, 4096, 4095, 100):
        os.ftruncate(fd, cut)
        os.ftruncate(fd, 8192)
        t.equal(os.pread(fd, 8192, 0), b"Q" * cut + bytes(8192 - cut), f"cut at {cut}")


@case
def truncation_after_fsync_and_with_unsynced_data(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"1" * 100000)
    os.fsync(fd)
    os.pwrite(fd, b"2" * 50000, 80000)
    os.ftruncate(fd, 90000)
    t.equal(os.pread(fd, 200000, 0), b"1" * 80000 + b"2" * 10000)
    os.fsync(fd)
    os.ftruncate(fd, 95000)
    os.pwrite(fd, b"3", 99999)
    t.equal(os.pread(fd, 200000, 0), b"1" * 80000 + b"2" * 10000 + bytes(9999) + b"3")


@case
def truncation_moves_mtime_and_ctime(t):
    for name, size in (("shrink", 5), ("grow", 500), ("same", 100)):
        path = t.file(name, b"x" * 100)
        before = os.stat(path)
        t.tick()
        os.truncate(path, size)
        after = os.stat(path)
        t.true(after.st_ctime_ns > before.st_ctime_ns, f"ctime moves ({name})")
        t.true(after.st_mtime_ns > before.st_mtime_ns, f"mtime moves ({name})")


@case
def growing_makes_a_hole(t):
    path = t.file("file", b"x")
    os.truncate(path, 1 << 30)
    st = os.stat(path)
    t.equal(st.st_size, 1 << 30)
    t.true(st.st_blocks < 1024, "no space is taken")
    fd = t.open(path)
    t.equal(os.pread(fd, 5000, (1 << 30) - 4000), bytes(4000))


@case
def truncation_is_refused_for_what_is_no_file(t):
    t.folder("folder")
    sys_.mknod(t.path("fifo"), stat.S_IFIFO | 0o600)
    t.fails(E.EISDIR, os.truncate, t.path("folder"), 0)
    t.fails(E.EINVAL, os.truncate, t.path("fifo"), 0)
    t.fails(E.ENOENT, os.truncate, t.path("none"), 0)
    t.file("file")
    t.fails(E.ENOTDIR, os.truncate, t.path("file", "x"), 0)
    t.fails(E.EINVAL, sys_.truncate, t.path("file"), -1)
    t.fails(E.EBADF, os.ftruncate, 9999, 0)


@case
def truncation_follows_links(t):
    t.file("file", b"0123456789")
    os.symlink("file", t.path("link"))
    os.symlink("gone", t.path("dangling"))
    os.symlink("b", t.path("a"))
    os.symlink("a", t.path("b"))
    os.truncate(t.path("link"), 4)
    t.content(t.path("file"), b"0123")
    t.fails(E.ENOENT, os.truncate, t.path("dangling"), 0)
    t.fails(E.ELOOP, os.truncate, t.path("a"), 0)


@case
def truncation_needs_write_permission(t):
    path = t.file("file", b"0123456789", 0o644, ANNA)
    t.fails(E.EACCES, os.truncate, path, 0, user=BEN)
    t.works(os.truncate, path, 5, user=ANNA)
    os.chmod(path, 0o444)
    t.fails(E.EACCES, os.truncate, path, 0, user=ANNA)
    t.works(os.truncate, path, 3)
    t.size(path, 3)
    t.folder("closed", 0o700)
    os.rename(path, t.path("closed", "file"))
    t.fails(E.EACCES, os.truncate, t.path("closed", "file"), 0, user=ANNA)


@case
def truncating_an_unlinked_file_by_its_descriptor(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"x" * 100000)
    os.unlink(t.path("file"))
    os.ftruncate(fd, 50)
    t.equal(os.fstat(fd).st_size, 50)
    os.ftruncate(fd, 100)
    t.equal(os.pread(fd, 200, 0), b"x" * 50 + bytes(50))


@case
def many_truncations_and_writes_agree_with_a_model(t):
    rng = random.Random(8)
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    want = bytearray()
    for number in range(120):
        if rng.random() < 0.5:
            size = rng.randrange(300000)
            os.ftruncate(fd, size)
            want = want[:size] + bytearray(max(0, size - len(want)))
        else:
            offset = rng.randrange(300000)
            data = rng.randbytes(rng.randrange(1, 60000))
            os.pwrite(fd, data, offset)
            want += bytearray(max(0, offset + len(data) - len(want)))
            want[offset:offset + len(data)] = data
        if number % 17 == 0:
            os.fsync(fd)
        if number % 8 == 0:
            t.true(os.pread(fd, 400000, 0) == bytes(want), f"content after {number} steps")
    t.equal(os.fstat(fd).st_size, len(want))
