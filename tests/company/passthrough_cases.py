"""Files that the kernel reads by itself, from the cache on the local disk.

Whether one is passed through is found out by stopping the mount's process: who reads a file that is passed through does not notice."""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import signal
import subprocess

from cache_cases import Cached, all_files, drop_pages, end
from company import Hands, map_drop, map_file, map_read, map_write, map_sync, put, take, take_open
from mounting import transports, writes_back
from suite import case
from waiting import TookTooLong, wait_until

MIB = 1 << 20
SIZE = 5 * MIB + 12345
STOPPED_SECONDS = 5
DROP_SECONDS = 10
CACHESTAT = 451                                  # the system call, from Linux 6.5 on


class Passing(Cached):
    """Mounts that must pass files through."""

    def __init__(self, test, mounts=1, extra=(), **options):
        super().__init__(test, mounts, extra=("--passthrough", "on", *extra), **options)
        self.test = test

    def file(self, name, size=SIZE):
        """A file that is whole in the cache: its path on the first mount, and its content."""
        path, data = os.path.join(self.points[0], name), self.test.rng.randbytes(size)
        put(path, data, sync=True)
        self.fill(path, data)
        return path, data

    def anew(self, *extra):
        """The first mount again, with these options, too."""
        self.mounts[0].umount()
        self.mounts[0].options = [*self.options, *extra]
        self.mounts[0].start()
        # Before it has the lease of the volume nothing is passed through.
        if len(self.mounts) == 1:
            wait_until(lambda: self.server.json("status", self.points[0])["alone"], 30, "the mount to be alone with the volume")

    def fill(self, path, data):
        """Reads it until it is passed through.  What was uploaded here is read from memory, and need not come to the cache by that."""
        with Hands(self.site, "filler") as (hand,):
            def whole():
                if writes_back():
                    self.server.cli("warm", path, check=False)
                fd = open_reading(hand, path)
                hand.call(os.fsync, fd)
                passed = passes(hand, self.mounts[0], fd, seconds=1)
                self.test.true(hand.call(take_open, fd) == data, f"{path} while it is read into the cache")
                close_all(hand, fd)
                return passed

            try:
                wait_until(whole, 60, f"{path} to be whole in the cache")
            except TookTooLong:
                self.test.say(self.server.cli("status", self.points[0], check=False)[1])
                raise


def stopped(mount):
    """While its process is stopped."""
    class Stopped:
        def __enter__(self):
            mount.freeze()

        def __exit__(self, *_):
            os.kill(mount.process.pid, signal.SIGCONT)

    return Stopped()


def forget_pages(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def passes(hand, mount, fd, seconds=STOPPED_SECONDS):
    """Whether what the hand has open is read without the mount."""
    hand.call(forget_pages, fd)
    with stopped(mount):
        hand.start(os.pread, fd, 4096, 2 * MIB)
        done = hand.done(seconds)
    hand.finish()
    return done


def open_reading(hand, path):
    return hand.call(os.open, path, os.O_RDONLY)


def close_all(hand, *fds):
    for fd in fds:
        hand.call(os.close, fd)


@case(seconds=120, only="epochfs")
def a_whole_file_is_read_without_the_mount(test):
    company = Passing(test)
    path, data = company.file("f")
    for extra in (*(("--fuse-uring", how) for how in transports()), ("--ro",)):
        company.anew(*extra)
        with Hands(test.site, "reader") as (reader,):
            fd = open_reading(reader, path)
            reader.call(forget_pages, fd)
            with stopped(company.mounts[0]):
                reader.start(take_open, fd)
                test.true(reader.done(STOPPED_SECONDS), f"{extra}: all of it is read while the mount is stopped")
            test.true(reader.finish() == data, f"{extra}: and is what was written")
            test.equal(reader.call(os.fstat, fd).st_size, len(data), "its size")
            number = reader.call(map_file, fd, len(data), write=False)
            with stopped(company.mounts[0]):
                reader.start(map_read, number, MIB, 2 * MIB)
                test.true(reader.done(STOPPED_SECONDS), f"{extra}: it is mapped while the mount is stopped")
            test.true(reader.finish() == data[MIB:2 * MIB], f"{extra}: what is mapped is what was written")
            reader.call(map_drop, number)
            close_all(reader, fd)
    end(test, company)


def in_memory(path, flags=0):
    """Pages of the file that are in memory, or were until others needed it; None: this kernel does not say."""
    everything, counts = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, fd, everything, counts, 0):
            return None
    finally:
        os.close(fd)
    cached, _, _, evicted, _ = counts
    return cached + evicted


def page_drops():
    """How often the kernel was made to drop all clean pages of the machine."""
    with open("/proc/vmstat", encoding="ascii") as f:
        return int(next(line.split()[1] for line in f if line.startswith("drop_pagecache ")))


def were_dropped(before):
    """Whether the pages of the machine were dropped since then.  The kernel counts that once it is done, which takes it seconds at times."""
    try:
        return wait_until(lambda: page_drops() != before, DROP_SECONDS, "pages to be dropped")
    except TookTooLong:
        return False


def is_whole(map_path):
    """By the map of a file in the cache (src/cache/files.c)."""
    with open(map_path, "rb") as f:
        return f.read(32)[28] == 1


@case(seconds=120, only="epochfs")
def what_was_read_once_is_in_memory_where_it_is_passed_through_from_and_nowhere_else(test):
    company = Passing(test)
    size, count = 16 * MIB, 8
    made = {f"f{k}": test.rng.randbytes(size) for k in range(count)}
    for name, data in made.items():
        put(os.path.join(company.points[0], name), data, sync=True)
    company.again()                              # so that they are not read from the pages they were written through
    paths = [os.path.join(company.points[0], name) for name in made]

    def of_cache(letter):
        return [f for f in all_files(company.folder) if os.path.basename(f).startswith(letter + "-")]
    with Hands(test.site, "first", "second") as (first, second):
        missing, drops = [], 0
        for n, (path, data) in enumerate(zip(paths, made.values()), 1):
            before = page_drops()
            test.true(first.call(take, path) == data, "what is read first")
            wait_until(lambda n=n: sum(is_whole(f) for f in of_cache("m")) == n, 60, "it to be whole in the cache")
            pages = in_memory(max(of_cache("f"), key=os.path.getmtime))
            lacking = 0 if pages is None else size // mmap.PAGESIZE - pages
            if lacking and were_dropped(before):
                drops += 1                       # somebody has made the kernel drop all pages of the machine
            else:
                missing.append(lacking)
        if in_memory(paths[0], os.O_DIRECT) is not None:
            test.equal(missing, [0] * (count - drops), "pages of the cache's files that are not in memory once they were read")
            # Who opens it for direct I/O is not passed through, and drops no pages.
            wait_until(lambda: not any(second.call(in_memory, path, os.O_DIRECT) for path in paths), 60,
                       "the mount's own pages to be dropped")

        def passed():
            fd = open_reading(second, paths[0])
            result = passes(second, company.mounts[0], fd, seconds=1)
            close_all(second, fd)
            return result
        wait_until(passed, 60, "who opens it again to read it without the mount")
        test.true(second.call(take, paths[0]) == made["f0"], "and it is what was written")
    end(test, company)


@case(seconds=120, only="epochfs")
def where_it_is_not_passed_through_what_was_read_once_stays_in_the_pages_of_the_mount(test):
    company = Passing(test, extra=("--passthrough", "off"))
    path, data = os.path.join(company.points[0], "f"), test.rng.randbytes(SIZE)
    put(path, data, sync=True)
    company.again()
    with Hands(test.site, "reader") as (reader,):
        test.true(reader.call(take, path) == data, "what is read first")
        before, fd = page_drops(), open_reading(reader, path)
        with stopped(company.mounts[0]):
            reader.start(take_open, fd)
            done = reader.done(STOPPED_SECONDS)
        test.true(done or were_dropped(before), "it is read again from the kernel's pages")
        test.true(reader.finish() == data, "and it is what was written")
        close_all(reader, fd)
    end(test, company)


@case(seconds=120, only="epochfs")
def off_and_small_files_and_files_that_are_not_whole_are_read_through_the_mount(test):
    company = Passing(test)
    path, _ = company.file("f")
    small = os.path.join(company.points[0], "small")
    put(small, bytes(MIB), sync=True)
    take(small)
    part = os.path.join(company.points[0], "part")
    put(part, bytes(64 * MIB), sync=True)
    with Hands(test.site, "reader") as (reader,):
        for name in (small, part):
            fd = open_reading(reader, name)
            reader.call(forget_pages, fd)
            with stopped(company.mounts[0]):
                reader.start(os.pread, fd, 4096, 1000)
                test.true(not reader.done(1), f"{name} is not passed through")
            reader.finish()
            close_all(reader, fd)
        company.anew("--passthrough", "off")
        fd = open_reading(reader, path)
        test.true(not passes(reader, company.mounts[0], fd, seconds=1), "with --passthrough off nothing is")
        close_all(reader, fd)
    end(test, company)


@case(seconds=120, only="epochfs")
def a_mount_that_must_and_cannot_is_refused(test):
    company = Passing(test)
    for what, words in (("without a cache", ["--passthrough", "on"]),
                        ("no such word", ["--passthrough", "maybe"])):
        point = os.path.join(test.site.base, "refused")
        os.makedirs(point, exist_ok=True)
        code = subprocess.run([os.path.join(test.build, "epochfs"), "mount", "shared", point, "--server", company.address, *words],
                              capture_output=True, check=False)
        test.true(code.returncode != 0 and b"--cache-dir" in code.stderr or b"auto, on or off" in code.stderr, f"{what}: {code.stderr}")
    end(test, company)


@case(seconds=120, only="epochfs")
def many_who_open_at_the_same_moment_are_all_passed_through(test):
    company = Passing(test)
    path, data = company.file("f")
    with Hands(test.site, *(f"reader{k}" for k in range(16))) as readers:
        for turn in range(5):
            for reader in readers:
                reader.start(os.open, path, os.O_RDONLY)
            fds = [reader.finish() for reader in readers]
            for reader, fd in zip(readers, fds):
                reader.call(forget_pages, fd)
            with stopped(company.mounts[0]):
                for reader, fd in zip(readers, fds):
                    reader.start(os.pread, fd, MIB, MIB)
                done = sum(reader.done(STOPPED_SECONDS) for reader in readers)
            test.equal(done, len(readers), f"turn {turn}: so many read without the mount")
            for reader, fd in zip(readers, fds):
                test.true(reader.finish() == data[MIB:2 * MIB], "what they read")
                reader.call(os.close, fd)
    end(test, company)


def check_same(test, hand, fds, path, want, what):
    """All who have it open, and who opens it now, see the same."""
    for fd in fds:
        test.true(hand.call(take_open, fd) == want, f"{what}: through descriptor {fd}")
        test.equal(hand.call(os.fstat, fd).st_size, len(want), f"{what}: its size by descriptor {fd}")
    test.true(hand.call(take, path) == want, f"{what}: opened anew")
    test.equal(hand.call(os.stat, path).st_size, len(want), f"{what}: its size")


@case(seconds=120, only="epochfs")
def a_writer_comes_while_it_is_passed_through(test):
    company = Passing(test)
    path, data = company.file("f")
    data = bytearray(data)
    with Hands(test.site, "reader", "writer") as (reader, writer):
        first = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], first), "it is passed through")
        fd = writer.call(os.open, path, os.O_RDWR)
        check_same(test, reader, [first], path, data, "opened for writing")
        for turn in range(30):
            at, new = test.rng.randrange(len(data)), test.rng.randbytes(test.rng.choice([1, 4096, 100_000]))
            writer.call(os.pwrite, fd, new, at)
            data[at:at + len(new)] = new
            check_same(test, reader, [first], path, data, f"turn {turn}: written at {at}")
        second = open_reading(reader, path)
        writer.call(os.ftruncate, fd, 3 * MIB + 5)
        del data[3 * MIB + 5:]
        check_same(test, reader, [first, second], path, data, "cut")
        writer.call(os.ftruncate, fd, 4 * MIB)
        data.extend(bytes(4 * MIB - len(data)))
        check_same(test, reader, [first, second], path, data, "made longer")
        writer.call(os.fsync, fd)
        check_same(test, reader, [first, second], path, data, "synced")
        writer.call(os.posix_fallocate, fd, 4 * MIB, MIB)
        data.extend(bytes(MIB))
        check_same(test, reader, [first, second], path, data, "allocated")
        writer.call(os.close, fd)
        tail = writer.call(os.open, path, os.O_WRONLY | os.O_APPEND)
        writer.call(os.write, tail, b"the end")
        data.extend(b"the end")
        check_same(test, reader, [first, second], path, data, "appended")
        close_all(reader, first, second)
        check_same(test, reader, [], path, data, "closed by the readers")
        writer.call(os.close, tail)
        company.fill(path, bytes(data))
        third = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], third), "the new content is passed through")
        writer.call(put, path, b"short")
        check_same(test, reader, [third], path, b"short", "replaced")
        close_all(reader, third)
    company.again()
    test.true(take(path) == b"short", "mounted anew")
    end(test, company)


@case(seconds=120, only="epochfs")
def a_reader_comes_while_it_is_open_for_writing(test):
    company = Passing(test)
    path, data = company.file("f")
    data = bytearray(data)
    with Hands(test.site, "reader", "writer") as (reader, writer):
        fd = writer.call(os.open, path, os.O_RDWR)
        first = open_reading(reader, path)
        for turn in range(10):
            at, new = test.rng.randrange(len(data)), test.rng.randbytes(5000)
            writer.call(os.pwrite, fd, new, at)
            data[at:at + len(new)] = new
            check_same(test, reader, [first], path, data, f"turn {turn}: written at {at}")
        writer.call(os.close, fd)
        check_same(test, reader, [first], path, data, "closed by the writer")
        close_all(reader, first)
        company.fill(path, bytes(data))
        first = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], first), "passed through from then on")
        check_same(test, reader, [first], path, data, "passed through")
        close_all(reader, first)
    end(test, company)


@case(seconds=120, only="epochfs")
def stores_through_a_mapping_are_kept_whoever_else_has_it_open(test):
    company = Passing(test)
    for order in ("reader first", "writer first"):
        path, data = company.file(order)
        data = bytearray(data)
        with Hands(test.site, "reader", "writer") as (reader, writer):
            if order == "reader first":
                first = open_reading(reader, path)
                test.true(passes(reader, company.mounts[0], first), "it is passed through")
            fd = writer.call(os.open, path, os.O_RDWR)
            if order != "reader first":
                first = open_reading(reader, path)
            number = writer.call(map_file, fd, len(data))
            writer.call(os.close, fd)
            writer.call(map_write, number, MIB, b"stored after close")
            data[MIB:MIB + 18] = b"stored after close"
            writer.call(map_sync, number)
            check_same(test, reader, [first], path, data, f"{order}: synced")
            writer.call(map_write, number, 3 * MIB, b"and before the end")
            data[3 * MIB:3 * MIB + 18] = b"and before the end"
            writer.call(map_drop, number)
            check_same(test, reader, [first], path, data, f"{order}: mapped no more")
            close_all(reader, first)
        drop_pages()
        test.true(take(path) == data, f"{order}: read anew")
        company.again()
        test.true(take(path) == data, f"{order}: mounted anew")
    end(test, company)


@case(seconds=120, only="epochfs")
def names_come_and_go_while_it_is_passed_through(test):
    company = Passing(test)
    path, data = company.file("f")
    other = path + "-other"
    with Hands(test.site, "reader") as (reader,):
        fd = open_reading(reader, path)
        os.rename(path, other)
        test.true(reader.call(take_open, fd) == data, "renamed")
        put(path, b"another file")
        test.true(reader.call(take_open, fd) == data, "another one has its name")
        os.link(other, path + "-link")
        with open(path + "-link", "r+b") as f:
            f.write(b"by the link")
        want = b"by the link" + data[11:]
        check_same(test, reader, [fd], other, want, "written by another name")
        os.unlink(other)
        os.unlink(path + "-link")
        test.true(reader.call(take_open, fd) == want, "without a name")
        test.equal(reader.call(os.fstat, fd).st_nlink, 0, "its links")
        put(other, b"new")
        os.rename(other, path)
        test.true(take(path) == b"new", "replaced by a rename")
        close_all(reader, fd)
        big, content = company.file("big")
        fd = open_reading(reader, big)
        put(big + "-new", b"other")
        os.rename(big + "-new", big)
        test.true(reader.call(take_open, fd) == content, "a file that was replaced by a rename")
        test.true(take(big) == b"other", "what it was replaced by")
        close_all(reader, fd)
    end(test, company)


@case(seconds=120, only="epochfs")
def a_file_that_is_passed_through_is_opened_again_by_its_descriptor(test):
    company = Passing(test)
    path, data = company.file("f")
    with Hands(test.site, "reader") as (reader,):
        fd = open_reading(reader, path)
        again = open_reading(reader, f"/proc/self/fd/{fd}")
        test.true(reader.call(take_open, again) == data, "for reading")
        test.equal(reader.error(os.open, f"/proc/self/fd/{fd}", os.O_RDWR), errno.ESTALE, "for writing")
        test.true(reader.call(take_open, again) == data, "nothing has happened")
        close_all(reader, fd, again)
        direct = reader.call(os.open, path, os.O_RDONLY | os.O_DIRECT)
        test.true(reader.call(take, path) == data, "beside one that is open with O_DIRECT")
        close_all(reader, direct)
        fd = open_reading(reader, path)
        direct = reader.call(os.open, path, os.O_RDONLY | os.O_DIRECT)
        test.true(reader.call(read_directly, direct, 4096, MIB) == data[MIB:MIB + 4096], "with O_DIRECT beside one that is passed through")
        close_all(reader, fd, direct)
    end(test, company)


def is_sealed(folder):
    """The map of the only large file says so (src/cache/files.c)."""
    with contextlib.suppress(FileNotFoundError):
        for name in all_files(folder):
            if os.path.basename(name).startswith("m-"):
                with open(name, "rb") as f:
                    return f.read(32)[28] & 1
    return False


def read_directly(fd, size, at):
    memory = mmap.mmap(-1, size)
    done = os.preadv(fd, [memory], at)
    return memory[:done]


@case(seconds=120, only="epochfs")
def what_is_passed_through_outlives_the_cache_and_the_mount(test):
    company = Passing(test, size="32MiB")
    path, data = company.file("f")
    with Hands(test.site, "reader") as (reader,):
        fd = open_reading(reader, path)
        for k in range(12):
            name = os.path.join(company.points[0], f"more{k}")
            put(name, test.rng.randbytes(4 * MIB), sync=True)
            take(name)
            take(name)
        test.true(reader.call(take_open, fd) == data, "after much else was read")
        for name in all_files(company.folder):
            with contextlib.suppress(FileNotFoundError):  # the mount removes some, too
                os.unlink(name)
        test.true(reader.call(take_open, fd) == data, "after the cache was emptied")
        with open(path, "r+b") as f:
            f.write(b"changed")
        data = b"changed" + data[7:]
        check_same(test, reader, [fd], path, data, "written after the cache was emptied")
        company.mounts[0].kill()
        test.true(reader.call(take_open, fd) == data, "after the mount was killed")
    company.mounts[0].discard()
    company.mounts[0].start()
    got = take(path)
    test.true(got[7:] == data[7:], "mounted anew")
    end(test, company)


@case(seconds=120, only="epochfs")
def a_cache_that_is_removed_or_turns_read_only_does_not_show(test):
    folder = os.path.join(test.site.base, "disk")
    os.mkdir(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], check=True)
    try:
        company = Passing(test, folder=os.path.join(folder, "cache"))
        path, data = company.file("f")
        with Hands(test.site, "reader") as (reader,):
            fd = open_reading(reader, path)
            shutil.rmtree(company.folder)
            check_same(test, reader, [fd], path, data, "the cache was removed")
            with open(path, "r+b") as f:
                f.write(b"changed")
            data = b"changed" + data[7:]
            check_same(test, reader, [fd], path, data, "written after that")
            close_all(reader, fd)
            company.again()
            company.fill(path, data)
            company.mounts[0].umount()
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            company.mounts[0].options = ["auto" if word == "on" else word for word in company.options]  # on: it is not mounted
            company.mounts[0].start()
            fd = open_reading(reader, path)
            check_same(test, reader, [fd], path, data, "read-only")
            close_all(reader, fd)
        end(test, company)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@case(seconds=120, only="epochfs")
def a_patched_file_is_nobodys_cached_content(test):
    company = Passing(test, mounts=0)
    company.join("mount-a")  # by the unix socket: the server knows at once when it is killed
    path, data = company.file("f")
    with Hands(test.site, "reader", "writer") as (reader, writer):
        fd = open_reading(reader, path)
        wait_until(lambda: is_sealed(company.folder), 10, "it to be marked as whole, which nobody verifies after a crash")
        out = writer.call(os.open, path, os.O_RDWR)
        writer.call(os.pwrite, out, b"never stored", 3 * MIB)
        test.true(reader.call(os.pread, fd, 12, 3 * MIB) == b"never stored", "it is seen")
        company.mounts[0].kill()
    company.mounts[0].discard()
    company.mounts[0].options = []
    company.mounts[0].start()
    got = take(path)
    want = (data, data[:3 * MIB] + b"never stored" + data[3 * MIB + 12:])
    test.true(got in want, "the file is as it was stored")
    company.mounts[0].umount()
    company.mounts[0].options = company.options
    company.mounts[0].start()
    test.true(take(path) == got, "with the cache it is the same")
    company.fill(path, got)
    with Hands(test.site, "reader") as (reader,):
        fd = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], fd), "passed through again")
        test.true(reader.call(take_open, fd) == got, "with the same content")
        close_all(reader, fd)
    end(test, company)


@case(seconds=120, only="epochfs")
def what_is_written_after_a_restart_of_the_server_is_seen_at_once(test):
    company = Passing(test, mounts=0)
    company.join("mount-a")  # by the unix socket, which is the same afterwards
    path, data = company.file("f")
    data = bytearray(data)
    with Hands(test.site, "reader", "writer") as (reader, writer):
        fd = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], fd), "it is passed through")
        out = writer.call(os.open, path, os.O_RDWR)
        for turn in range(10):
            writer.call(os.pwrite, out, b"before", turn)
            data[turn:turn + 6] = b"before"
            company.server.kill()
            company.server.start()
            writer.call(os.fstat, out)
            new = test.rng.randbytes(5000)
            writer.call(os.pwrite, out, new, len(data))
            data += new
            test.true(reader.call(take_open, fd) == data, f"turn {turn}: who has it open sees it")
        close_all(reader, fd)
        close_all(writer, out)
    end(test, company)


@case(seconds=120, only="epochfs")
def another_mount_comes_and_writes(test):
    company = Passing(test)
    path, data = company.file("f")
    data = bytearray(data)
    with Hands(test.site, "reader", "other") as (reader, other):
        fd = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], fd), "alone, it is passed through")
        company.join("mount-b", address=company.address)
        there = os.path.join(company.points[1], "f")
        test.true(reader.call(take_open, fd) == data, "another mount has come")
        out = other.call(os.open, there, os.O_RDWR)
        for turn in range(10):
            at, new = test.rng.randrange(len(data)), test.rng.randbytes(20_000)
            other.call(os.pwrite, out, new, at)
            data[at:at + len(new)] = new
            test.true(reader.call(take, path) == data, f"turn {turn}: who opens it sees it at once")
            wait_until(lambda: reader.call(take_open, fd) == data, 30, "the one who has it open to see it")
        other.call(os.ftruncate, out, 2 * MIB)
        del data[2 * MIB:]
        test.true(reader.call(take, path) == data, "cut")
        wait_until(lambda: reader.call(take_open, fd) == data, 30, "the one who has it open to see it cut")
        mine = reader.call(os.open, path, os.O_RDWR)
        reader.call(os.pwrite, mine, b"both write", 100)
        data[100:110] = b"both write"
        test.true(other.call(take_open, out) == data, "what this one writes is seen there")
        wait_until(lambda: reader.call(take_open, fd) == data, 10, "and here")
        close_all(reader, fd, mine)
        close_all(other, out)
        new, content = os.path.join(company.points[0], "new"), test.rng.randbytes(SIZE)
        put(new, content, sync=True)
        fd = open_reading(reader, new)
        test.true(reader.call(take_open, fd) == content, "a new one is read")
        close_all(reader, fd)
        fd = open_reading(reader, new)
        test.true(not passes(reader, company.mounts[0], fd, seconds=1), "in company nothing is passed through anew")
        close_all(reader, fd)
    end(test, company)


@case(seconds=120, only="epochfs")
def on_a_relaxed_volume_who_opens_sees_what_is_stored(test):
    company = Passing(test, mounts=0)
    company.server.cli("volume", "set", "shared", "--consistency", "relaxed")
    for k in range(2):
        company.join(f"mount-{'ab'[k]}", address=company.address)
    path, data = company.file("f")
    with Hands(test.site, "reader") as (reader,):
        fd = open_reading(reader, path)
        test.true(passes(reader, company.mounts[0], fd), "it is passed through in company, too")
        for turn in range(5):
            new = test.rng.randbytes(10_000)
            with open(os.path.join(company.points[1], "f"), "r+b") as f:
                f.seek(turn * 100_000)
                f.write(new)
                f.flush()
                os.fsync(f.fileno())
            data = data[:turn * 100_000] + new + data[turn * 100_000 + len(new):]
            wait_until(lambda: reader.call(take, path) == data, 10, "who opens it to see it")
            wait_until(lambda: reader.call(take_open, fd) == data, 10, "who has it open to see it, too")
        close_all(reader, fd)
    end(test, company)


@case(seconds=180, only="epochfs")
def two_mounts_that_share_a_cache_do_not_see_what_is_not_stored(test):
    company = Passing(test, extra=("--ro",))
    company.mounts[0].umount()
    company.mounts[0].options = [o for o in company.mounts[0].options if o != "--ro"]
    company.mounts[0].start()
    path, data = company.file("f")
    company.mounts[0].umount()
    company.mounts[0].options = [*company.mounts[0].options, "--ro"]
    company.mounts[0].start()
    company.join("mount-b", address=company.address)
    there = os.path.join(company.points[1], "f")
    with Hands(test.site, "a", "b") as (a, b):
        here, other = open_reading(a, path), open_reading(b, there)
        test.true(passes(a, company.mounts[0], here) and passes(b, company.mounts[1], other), "both are passed through")
        company.options = ["--cache-dir", company.folder, "--cache-size", "1GiB", "--cache-min-free", "1MiB"]
        writer = company.join("mount-c", address=company.address)
        with open(os.path.join(writer.point, "f"), "r+b") as f:
            f.write(b"by a third")
        data = b"by a third" + data[10:]
        for hand, name in ((a, path), (b, there)):
            test.true(hand.call(take, name) == data, "who opens it sees it")
        for hand, fd in ((a, here), (b, other)):
            wait_until(lambda: hand.call(take_open, fd) == data, 10, "who has it open to see it")
        close_all(a, here)
        close_all(b, other)
    end(test, company)


@case(seconds=120, only="epochfs")
def locks_and_times_are_as_for_other_files(test):
    company = Passing(test, extra=("--relatime",))
    path, data = company.file("f")
    with Hands(test.site, "reader", "writer") as (reader, writer):
        fd = open_reading(reader, path)
        reader.call(fcntl.flock, fd, fcntl.LOCK_SH)
        out = writer.call(os.open, path, os.O_RDWR)
        test.equal(writer.error(fcntl.flock, out, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.EAGAIN, "both are one file to locks")
        before = reader.call(os.fstat, fd).st_mtime_ns
        writer.call(os.pwrite, out, b"x", 0)
        test.true(reader.call(os.fstat, fd).st_mtime_ns > before, "mtime by the descriptor that is passed through")
        test.equal(reader.call(os.fstat, fd).st_ino, writer.call(os.fstat, out).st_ino, "both are one inode")
        reader.call(fcntl.flock, fd, fcntl.LOCK_UN)
        test.equal(writer.error(fcntl.flock, out, fcntl.LOCK_EX | fcntl.LOCK_NB), 0, "released")
        close_all(reader, fd)
        close_all(writer, out)
        os.utime(path, (1, os.stat(path).st_mtime))
        test.true(take(path) == b"x" + data[1:], "read")
        test.true(os.stat(path).st_atime > 1, "its access time was updated")
    end(test, company)


class Opened:
    """A file with everything that has it open, and what it should hold."""

    def __init__(self, test, path, data):
        self.test, self.path, self.data = test, path, bytearray(data)
        self.readers, self.writers, self.maps = [], [], []

    def step(self):
        rng = self.test.rng
        what = rng.choice(["read", "read", "write", "close", "close", "put", "put", "cut", "append", "map", "store", "unmap",
                           "sync", "name", "punch", "cut by name"])
        at = rng.randrange(len(self.data) + 1)
        new = rng.randbytes(rng.choice([1, 700, 4096, 70_000]))
        if what == "read" and len(self.readers) < 4:
            self.readers.append(os.open(self.path, os.O_RDONLY))
        elif what == "write" and len(self.writers) < 2:
            self.writers.append(os.open(self.path, os.O_RDWR))
        elif what == "close" and self.readers + self.writers:
            fd = rng.choice(self.readers + self.writers)
            (self.readers if fd in self.readers else self.writers).remove(fd)
            os.close(fd)
        elif what == "put" and self.writers:
            os.pwrite(rng.choice(self.writers), new, at)
            self.data[at:at + len(new)] = new
        elif what == "append":
            put(self.path, new, os.O_WRONLY | os.O_APPEND)
            self.data += new
        elif what == "cut" and self.writers and not self.maps:
            self.resize(rng.choice(self.writers))
        elif what == "cut by name" and not self.maps:
            self.resize(self.path)
        elif what == "punch" and self.writers and self.data:
            at, length = min(at, len(self.data) - 1), 100_000
            subprocess.run(["fallocate", "-p", "-o", str(at), "-l", str(length), self.path], check=True)
            end_ = min(at + length, len(self.data))
            self.data[at:end_] = bytes(end_ - at)
        elif what == "map" and self.writers and len(self.maps) < 2 and self.data:
            self.maps.append(mmap.mmap(rng.choice(self.writers), len(self.data)))
        elif what == "store" and self.maps:
            memory = rng.choice(self.maps)
            at = rng.randrange(len(memory))
            new = new[:len(memory) - at]
            memory[at:at + len(new)] = new
            memory.flush()
            self.data[at:at + len(new)] = new
        elif what == "unmap" and self.maps:
            self.maps.pop().close()
        elif what == "sync" and self.writers:
            os.fsync(rng.choice(self.writers))
        elif what == "name":
            os.rename(self.path, self.path + "-")
            self.path += "-"
        else:
            what = "nothing"
        return what

    def resize(self, what):
        size = self.test.rng.choice([0, 1_000_000, 3 * MIB, SIZE])
        os.truncate(what, size)
        del self.data[size:]
        self.data += bytes(size - len(self.data))

    def check(self, what):
        for fd in self.readers + self.writers:
            if take_open(fd) != self.data:
                self.test.true(False, f"{what}: by descriptor {fd} of {self.readers}, {self.writers}")
            if os.fstat(fd).st_size != len(self.data):
                self.test.true(False, f"{what}: size by descriptor {fd}: {os.fstat(fd).st_size}, not {len(self.data)}")
        for memory in self.maps:
            if memory[:] != self.data[:len(memory)]:
                self.test.true(False, f"{what}: what is mapped")
        if take(self.path) != self.data:
            self.test.true(False, f"{what}: opened anew")

    def end(self):
        for memory in self.maps:
            memory.close()
        for fd in self.readers + self.writers:
            os.close(fd)


@case(seconds=400, only="epochfs")
def whatever_is_done_to_a_file_shows_in_all_descriptors(test):
    company = Passing(test)
    for how in transports():
        company.anew("--fuse-uring", how)
        for turn in range(6 if not test.long else 60):
            path, data = company.file(f"f{turn}-{how}")
            opened = Opened(test, path, data)
            opened.readers.append(os.open(path, os.O_RDONLY))
            done = []
            for _ in range(80):
                done.append(opened.step())
                opened.check(f"--fuse-uring {how}, turn {turn}: {' '.join(done[-12:])}")
            opened.end()
            if take(opened.path) != opened.data:
                test.true(False, f"turn {turn}: closed")
        test.true(True, "all turns")
    end(test, company)
