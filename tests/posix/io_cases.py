"""read and write at any offset, sparse files, sizes."""
import errno as E
import mmap
import os
import random
import resource
import signal

import aio
import syscalls as sys_
from suite import case

BLOCK = 4 << 20


@case
def what_was_written_is_read_back_at_any_size(t):
    rng = random.Random(1)
    for size in (0, 1, 2, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 131072, 200001, 1 << 20, (1 << 20) + 1, 3000000):
        data = rng.randbytes(size)
        path = t.file(f"s{size}", data)
        t.size(path, size)
        t.content(path, data)


@case(seconds=120)
def a_file_over_several_blocks_is_read_back(t):
    rng = random.Random(2)
    data = rng.randbytes(2 * BLOCK + 12345)
    path = t.file("big", data)
    fd = t.open(path)
    for offset, length in ((0, 10), (BLOCK - 5, 10), (BLOCK, 1), (2 * BLOCK - 1, 2), (2 * BLOCK + 12340, 100), (1234567, 765432),
                           (2 * BLOCK + 12345, 1), (5 * BLOCK, 10)):
        t.equal(os.pread(fd, length, offset), data[offset:offset + length], f"{length} bytes at {offset}")
    t.content(path, data)


@case
def writes_in_any_order_and_overlap_give_the_last_bytes(t):
    rng = random.Random(3)
    size = 600000
    want = bytearray(size)
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, size)
    for number in range(150):
        offset = rng.randrange(size)
        data = rng.randbytes(rng.choice((1, 7, 100, 4096, 5000, 70000)))[:size - offset]
        t_written = os.pwrite(fd, data, offset)
        want[offset:offset + t_written] = data[:t_written]
        if number % 30 == 0:
            os.fsync(fd)
        if number % 10 == 0:
            t.equal(os.pread(fd, size, 0) == bytes(want), True, f"after {number} overlapping writes")
    t.equal(os.pread(fd, size, 0) == bytes(want), True, "after all overlapping writes")


@case(seconds=120)
def what_was_written_is_read_at_once_while_others_read(t):
    """By way of a descriptor that only writes, which may go around the pages that the others fill."""
    size = 3 << 20      # several messages: the pages go at the beginning
    path = t.file("file", bytes(size))
    writer, reader = t.open(path, os.O_WRONLY), t.open(path)
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_RDONLY)
        while os.getppid() != 1:
            os.pread(fd, 8, size - 8)
        os._exit(0)
    try:
        for number in range(1, 101):
            stamp = number.to_bytes(8, "little")
            os.pwrite(writer, stamp * (size // 8), 0)
            if not t.equal(os.pread(reader, 8, size - 8), stamp, f"what is read after write {number}"):
                break
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def read_for_ever(path, size, mapped):
    """In a child, until it is killed."""
    fd = os.open(path, os.O_RDONLY)
    pages = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if mapped else None
    while os.getppid() != 1:
        for offset in range(0, size, 4096):
            pages[offset] if mapped else os.pread(fd, 8, offset)
    os._exit(0)


@case(seconds=120)
def what_was_written_asynchronously_around_the_cache_is_read_at_once(t):
    """The kernel drops the pages before it sends such a write, and leaves those alone that others have read again until it ended."""
    if not aio.possible():
        return
    size, part, mapped = 1 << 20, 64 << 10, (False, True, False)
    path = t.file("file", bytes(size))
    writer, reader = t.open(path, os.O_RDWR | os.O_DIRECT), t.open(path)
    view, buffer = mmap.mmap(reader, size, mmap.MAP_SHARED, mmap.PROT_READ), mmap.mmap(-1, size)
    children = []
    try:
        for how in mapped:
            children.append(os.fork())
            if children[-1] == 0:
                read_for_ever(path, size, how)
        with aio.Aio(size // part) as queue:
            for number in range(1, 101):
                stamp = number.to_bytes(8, "little")
                buffer[:] = stamp * (size // 8)
                for offset in range(0, size, part):
                    queue.write(writer, buffer, offset, part, offset)
                queue.wait()
                old = [offset for offset in range(0, size, 4096) if os.pread(reader, 8, offset) != stamp]
                old_mapped = [offset for offset in range(0, size, 4096) if view[offset:offset + 8] != stamp]
                if not t.equal((old, old_mapped), ([], []), f"where what was there before write {number} is read, and seen in a mapping"):
                    break
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        view.close()


@case
def overwriting_in_the_middle_leaves_the_rest(t):
    path = t.file("file", b"a" * 300000)
    fd = t.open(path, os.O_RDWR)
    os.pwrite(fd, b"B" * 1000, 100000)
    os.fsync(fd)
    os.pwrite(fd, b"C" * 10, 100500)
    want = b"a" * 100000 + b"B" * 500 + b"C" * 10 + b"B" * 490 + b"a" * 199000
    t.content(path, want)
    t.size(path, 300000)


@case
def a_gap_between_writes_reads_as_zeroes(t):
    fd = t.open(t.path("sparse"), os.O_CREAT | os.O_RDWR, 0o600)
    os.pwrite(fd, b"start", 0)
    os.pwrite(fd, b"end", 10 << 20)
    t.equal(os.fstat(fd).st_size, (10 << 20) + 3)
    t.equal(os.pread(fd, 20, 0), b"start" + bytes(15))
    t.equal(os.pread(fd, 4096, 5 << 20), bytes(4096), "the middle")
    t.equal(os.pread(fd, 100, (10 << 20) - 5), bytes(5) + b"end")
    os.fsync(fd)
    t.true(os.fstat(fd).st_blocks * 512 < 2 << 20, "the hole takes no space")


@case
def st_blocks_grows_with_data(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, random.Random(4).randbytes(1 << 20))
    os.fsync(fd)
    blocks = os.fstat(fd).st_blocks * 512
    t.true((1 << 20) <= blocks <= (1 << 20) + 65536, f"1 MiB of data takes about 1 MiB ({blocks})")


@case
def reading_at_and_after_the_end_gives_nothing(t):
    fd = t.open(t.file("file", b"0123456789"))
    t.equal(os.pread(fd, 10, 10), b"")
    t.equal(os.pread(fd, 10, 1 << 40), b"")
    t.equal(os.pread(fd, 10, 9), b"9")
    t.equal(os.pread(fd, 0, 0), b"")
    t.fails(E.EINVAL, os.pread, fd, 1, -1)


@case
def the_position_is_shared_by_dup_and_not_by_open(t):
    path = t.file("file", b"0123456789")
    a = t.open(path)
    b = os.dup(a)
    c = t.open(path)
    t.equal(os.read(a, 3), b"012")
    t.equal(os.read(b, 3), b"345", "dup shares the position")
    t.equal(os.read(c, 3), b"012", "another open has its own")
    os.close(b)
    t.equal(os.pread(a, 2, 0), b"01", "pread does not move the position")
    t.equal(os.read(a, 3), b"678")


@case
def seeking_follows_the_rules(t):
    fd = t.open(t.file("file", b"0123456789"), os.O_RDWR)
    t.equal(os.lseek(fd, -3, os.SEEK_END), 7)
    t.equal(os.lseek(fd, 2, os.SEEK_CUR), 9)
    t.equal(os.lseek(fd, 100, os.SEEK_SET), 100, "seeking beyond the end is allowed")
    t.equal(os.read(fd, 5), b"")
    t.equal(os.fstat(fd).st_size, 10, "and does not make the file longer")
    os.write(fd, b"x")
    t.equal(os.fstat(fd).st_size, 101, "but writing there does")
    t.fails(E.EINVAL, os.lseek, fd, -1, os.SEEK_SET)
    t.fails(E.EINVAL, os.lseek, fd, -200, os.SEEK_END)
    t.fails(E.EINVAL, sys_.lseek, fd, 0, 99)


@case
def vectored_reads_and_writes(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    t.equal(os.writev(fd, [b"one", b"", b"two", b"three" * 1000]), 5006)
    t.equal(os.pwritev(fd, [b"ONE", b"TWO"], 0), 6)
    parts = [bytearray(3), bytearray(3), bytearray(5)]
    t.equal(os.preadv(fd, parts, 0), 11)
    t.equal(bytes(b"".join(parts)), b"ONETWOthree")


@case
def a_write_of_nothing_changes_nothing(t):
    path = t.file("file", b"abc")
    before = os.stat(path)
    t.tick()
    fd = t.open(path, os.O_RDWR)
    t.equal(os.write(fd, b""), 0)
    t.equal(os.pwrite(fd, b"", 1000), 0)
    after = os.stat(path)
    t.equal(after.st_size, 3)
    t.equal(after.st_mtime_ns, before.st_mtime_ns, "mtime")


@case
def writers_and_readers_see_each_other_at_once(t):
    path = t.file("file")
    writing, reading = t.open(path, os.O_WRONLY), t.open(path)
    for n in range(100):
        os.write(writing, b"%04d" % n)
        t.equal(os.read(reading, 10), b"%04d" % n)
    t.equal(os.stat(path).st_size, 400)


@case
def another_process_sees_a_write_before_close(t):
    path = t.file("file", b"old")
    fd = t.open(path, os.O_WRONLY)
    os.pwrite(fd, b"new", 0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, open(path, "rb").read())
        os._exit(0)
    os.waitpid(pid, 0)
    t.equal(os.read(reader, 10), b"new")
    os.close(reader)
    os.close(writer)


@case
def direct_io_reads_what_was_written_through_the_cache_and_back(t):
    path = t.file("file", b"c" * 65536)
    fd = t.open(path, os.O_RDWR | os.O_DIRECT)
    buffer = mmap.mmap(-1, 65536)
    t.equal(os.preadv(fd, [buffer], 0), 65536)
    t.true(bytes(buffer) == b"c" * 65536, "a direct read sees cached writes")
    buffer[:] = b"d" * 65536
    t.equal(os.pwritev(fd, [memoryview(buffer)[:8192]], 4096), 8192)
    t.content(path, b"c" * 4096 + b"d" * 8192 + b"c" * (65536 - 12288))
    buffer.close()


@case
def closing_without_fsync_keeps_everything(t):
    rng = random.Random(5)
    contents = {}
    for n in range(60):
        contents[f"f{n}"] = rng.randbytes(rng.randrange(1, 30000))
        t.file(f"f{n}", contents[f"f{n}"])
    for name, data in contents.items():
        t.content(t.path(name), data)


@case
def a_file_of_sixteen_tebibytes(t):
    top = 16 << 40 if t.epochfs else (16 << 40) - (64 << 10)
    fd = t.open(t.path("huge"), os.O_CREAT | os.O_RDWR, 0o600)
    t.works(os.ftruncate, fd, top)
    t.equal(os.fstat(fd).st_size, top)
    os.pwrite(fd, b"near the end", top - 100)
    os.pwrite(fd, b"middle", top // 2)
    os.pwrite(fd, b"at 4 GiB", (4 << 30) - 4)
    t.equal(os.pread(fd, 12, top - 100), b"near the end")
    t.equal(os.pread(fd, 6, top // 2), b"middle")
    t.equal(os.pread(fd, 8, (4 << 30) - 4), b"at 4 GiB")
    t.equal(os.pread(fd, 100, 1 << 40), bytes(100))
    os.fsync(fd)
    t.true(os.fstat(fd).st_blocks * 512 < 64 << 20, "and takes hardly any space")
    if t.epochfs:
        os.pwrite(fd, b"beyond", top + 5)
        t.equal(os.fstat(fd).st_size, top + 11, "it can grow beyond 16 TiB")
    t.close(fd)
    t.equal(os.stat(t.path("huge")).st_size >= top, True)


@case
def the_file_size_limit_of_a_process_gives_efbig_and_a_signal(t):
    path = t.file("file", b"x" * 1000)

    def act():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        fd = os.open(path, os.O_RDWR)
        results = []
        for attempt in (lambda: os.pwrite(fd, b"y" * 2000, 4000), lambda: os.pwrite(fd, b"y", 5000), lambda: os.ftruncate(fd, 5001),
                        lambda: os.ftruncate(fd, 5000)):
            try:
                results.append(attempt())
            except OSError as error:
                results.append(E.errorcode[error.errno])
        return results
    from users import ROOT, run_as
    t.equal(run_as(ROOT, act), [1000, "EFBIG", "EFBIG", None], "a write is cut at the limit, then refused")
    t.size(path, 5000)


@case
def offsets_that_overflow_are_refused(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    t.fails((E.EFBIG, E.EINVAL), os.pwrite, fd, b"x" * 10, (1 << 63) - 5)
    t.fails((E.EFBIG, E.EINVAL), os.ftruncate, fd, (1 << 63) - 1)
    t.fails(E.EINVAL, sys_.ftruncate, fd, -1)
    t.equal(os.fstat(fd).st_size, 0)


@case
def small_appends_by_many_opens_add_up(t):
    path = t.path("log")
    want = b""
    for n in range(150):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        record = b"record %d\n" % n
        os.write(fd, record)
        os.close(fd)
        want += record
    t.content(path, want)


@case
def sendfile_and_splice_copy_from_it(t):
    data = random.Random(6).randbytes(300000)
    source = t.open(t.file("source", data))
    target = t.open(t.path("target"), os.O_CREAT | os.O_RDWR, 0o600)
    at = 0
    while at < len(data):
        at += os.sendfile(target, source, at, len(data) - at)
    t.content(t.path("target"), data)


@case
def the_same_bytes_by_every_way_of_reading(t):
    data = random.Random(7).randbytes(400000)
    path = t.file("file", data)
    fd = t.open(path)
    t.true(b"".join(iter(lambda: os.read(fd, 1000), b"")) == data, "in small reads")
    backwards = [os.pread(fd, 4096, o) for o in range((len(data) - 1) // 4096 * 4096, -1, -4096)]
    t.true(b"".join(reversed(backwards)) == data, "backwards")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    t.true(os.pread(fd, len(data), 0) == data, "after dropping pages")
