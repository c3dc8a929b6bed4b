"""Times: utimensat, and what each call does to them."""
import contextlib
import errno as E
import mmap
import os
import re

import syscalls as sys_
from suite import case
from users import ANNA, BEN

NS = 10 ** 9


@case
def times_are_set_to_the_nanosecond(t):
    path = t.file("f", b"x")
    for atime, mtime in ((1, 2), (1234567890 * NS + 123456789, 987654321 * NS + 987654321), (0, 0), (2 ** 31 * NS, 2 ** 32 * NS + 1), (-NS, -5 * NS)):
        os.utime(path, ns=(atime, mtime))
        st = os.stat(path)
        t.equal((st.st_atime_ns, st.st_mtime_ns), (atime, mtime))


@case
def now_and_omit(t):
    path = t.file("f", b"x")
    os.utime(path, ns=(5 * NS, 7 * NS))
    sys_.utimensat(path, (0, sys_.UTIME_OMIT), (9, 1))
    st = os.stat(path)
    t.equal((st.st_atime_ns, st.st_mtime_ns), (5 * NS, 9 * NS + 1), "OMIT leaves it")
    sys_.utimensat(path, (0, sys_.UTIME_NOW), (0, sys_.UTIME_OMIT))
    st = os.stat(path)
    t.true(st.st_atime_ns > 10 ** 18, "NOW is now")
    t.equal(st.st_mtime_ns, 9 * NS + 1)
    before = os.stat(path)
    t.tick()
    sys_.utimensat(path, (0, sys_.UTIME_OMIT), (0, sys_.UTIME_OMIT))
    t.equal(os.stat(path).st_ctime_ns, before.st_ctime_ns, "omitting both changes nothing")
    sys_.utimensat(path, (0, sys_.UTIME_NOW), (0, sys_.UTIME_NOW))
    st = os.stat(path)
    t.true(st.st_mtime_ns > before.st_mtime_ns and st.st_ctime_ns > before.st_ctime_ns, "NOW moves mtime and ctime")


@case
def setting_times_moves_ctime(t):
    path = t.file("f", b"x")
    before = os.stat(path)
    t.tick()
    os.utime(path, ns=(1, 1))
    t.true(os.stat(path).st_ctime_ns > before.st_ctime_ns, "ctime")


@case
def links_have_times_of_their_own(t):
    t.file("f", b"x")
    os.symlink("f", t.path("s"))
    before = os.stat(t.path("f")).st_mtime_ns
    os.utime(t.path("s"), ns=(3 * NS, 4 * NS), follow_symlinks=False)
    t.equal(os.lstat(t.path("s")).st_mtime_ns, 4 * NS)
    t.equal(os.stat(t.path("f")).st_mtime_ns, before)


@case
def who_may_set_times(t):
    path = t.file("f", b"x", 0o644, ANNA)
    t.works(os.utime, path, (5, 5), user=ANNA)
    t.fails(E.EPERM, os.utime, path, (5, 5), user=BEN)
    t.fails(E.EACCES, os.utime, path, None, user=BEN)
    os.chmod(path, 0o666)
    t.works(os.utime, path, None, user=BEN, what="NOW with write permission")
    t.fails(E.EPERM, os.utime, path, (5, 5), user=BEN)


@case
def writing_moves_mtime_and_ctime_and_reading_does_not(t):
    path = t.file("f", b"x" * 100)
    before = os.stat(path)
    t.tick()
    t.content(path, b"x" * 100)
    t.equal((os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns), (before.st_mtime_ns, before.st_ctime_ns), "after reading")
    fd = t.open(path, os.O_WRONLY)
    os.write(fd, b"y")
    after = os.stat(path)
    t.true(after.st_mtime_ns > before.st_mtime_ns, "write moves mtime")
    t.true(after.st_ctime_ns > before.st_ctime_ns, "write moves ctime")
    os.fsync(fd)
    later = os.stat(path)
    t.equal((later.st_mtime_ns, later.st_ctime_ns), (after.st_mtime_ns, after.st_ctime_ns), "fsync moves nothing")
    t.tick()
    os.close(os.open(path, os.O_WRONLY))
    t.equal(os.stat(path).st_mtime_ns, later.st_mtime_ns, "opening moves nothing")


@case
def a_set_mtime_survives_data_that_was_not_stored_yet(t):
    path = t.path("f")
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(fd, b"x" * 300000)
    os.utime(path, ns=(11 * NS, 12 * NS))
    os.close(fd)
    t.equal(os.stat(path).st_mtime_ns, 12 * NS)
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    t.equal(os.stat(path).st_mtime_ns, 12 * NS, "after fsync")


@case
def new_files_have_one_time(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_WRONLY, 0o644)
    st = os.fstat(fd)
    t.true(abs(st.st_mtime_ns - st.st_ctime_ns) < NS and abs(st.st_atime_ns - st.st_ctime_ns) < NS, "all three are now")
    born = sys_.Statx(t.path("f"))
    if born.has_btime:
        t.true(abs(born.btime_ns - st.st_ctime_ns) < 5 * NS, "and so is the birth")
        os.chmod(t.path("f"), 0o600)
        t.equal(sys_.Statx(t.path("f")).btime_ns, born.btime_ns, "which stays")


@case
def times_never_go_back(t):
    last = 0
    for k in range(200):
        path = t.file(f"f{k % 5}", b"x" * k)
        now = os.stat(path).st_ctime_ns
        t.true(now >= last, f"step {k}") if k % 50 == 0 or now < last else None
        last = now


# ---- Access times: mounts of their own, as most do without them


@contextlib.contextmanager
def mounted(t, volume, *options):
    """The folder of a mount with these options."""
    server = t.site.main_mount.server
    server.volume(volume)
    mount = server.mount(volume, name=volume, options=options)
    try:
        yield mount.point
    finally:
        mount.umount()


def read_some(path, flags=0, length=10):
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        return os.read(fd, length)
    finally:
        os.close(fd)


def times(path):
    st = os.stat(path)
    return st.st_mtime_ns, st.st_ctime_ns


def reading_unstored_data(t, folder):
    path = os.path.join(folder, f"f{len(os.listdir(folder))}")
    fd = t.open(path, os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x" * 100000, 0)
    before, accessed = times(path), os.stat(path).st_atime_ns
    for turn in range(3):
        t.equal(read_some(path), b"x" * 10, "content")
        t.equal(times(path), before, f"mtime and ctime after reading unstored data, {turn}")
    t.true(os.stat(path).st_atime_ns > accessed, "atime has moved")
    os.fsync(fd)
    t.equal(times(path), before, "once it is stored")
    read_some(path)
    t.equal(times(path), before, "after reading stored data")
    os.pwrite(fd, b"y", 5)
    t.true(times(path)[1] > before[1], "writing moves ctime")
    before = times(path)
    read_some(path)
    t.equal(times(path), before, "after reading what was overwritten and is not stored")
    t.close(fd)


@case(only="epochfs", lasting=False)
def with_relatime_reading_moves_nothing_but_atime(t):
    with mounted(t, "rel", "--relatime") as folder:
        reading_unstored_data(t, folder)


@case(only="epochfs", lasting=False)
def with_strictatime_reading_moves_nothing_but_atime(t):
    with mounted(t, "strict", "--strictatime") as folder:
        reading_unstored_data(t, folder)


def every_read_counts(t):
    """Linux 6.6 and later allow files that are read past the kernel's pages to be mapped.  Before, the first read after an open counts alone."""
    counts = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 6)
    if not counts:
        print(f"left out before Linux 6.6, where not every read counts: {t.case.group}.{t.case.name}", flush=True)
    return counts


def atime_moves(path, reading, *args):
    before = os.stat(path).st_atime_ns
    reading(*args)
    return os.stat(path).st_atime_ns > before


@case(only="epochfs", lasting=False)
def with_strictatime_every_read_moves_atime(t):
    with mounted(t, "strict-all", "--strictatime") as folder:
        path, link, sub = (os.path.join(folder, name) for name in ("f", "s", "d"))
        with open(path, "wb") as f:
            f.write(os.urandom(3 << 20))
        os.mkdir(sub)
        os.symlink("f", link)
        for turn in range(3):
            t.true(atime_moves(path, read_some, path), f"reading after opening, {turn}")
            t.true(atime_moves(sub, os.listdir, sub), f"listing, {turn}")
        if not every_read_counts(t):
            return
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND):
            fd = t.open(path, flags)
            for turn in range(3):
                t.true(atime_moves(path, os.pread, fd, 10, turn), f"reading again, flags {flags:#o}, {turn}")
            t.close(fd)
        t.true(not atime_moves(path, read_some, path, os.O_NOATIME), "not with O_NOATIME")
        fd = t.open(os.path.join(folder, "new"), os.O_CREAT | os.O_RDWR)
        os.write(fd, b"0123456789")
        t.true(atime_moves(os.path.join(folder, "new"), os.pread, fd, 10, 0), "by the descriptor that made it")
        t.close(fd)
        fd = t.open(path, os.O_RDWR)
        with mmap.mmap(fd, 3 << 20) as memory:
            memory[100:104] = b"here"
            t.equal(os.pread(fd, 4, 100), b"here", "what a mapping has is read")
            os.pwrite(fd, b"there", 200)
            t.equal(memory[200:205], b"there", "and the other way round")
        t.close(fd)


@case(only="epochfs", lasting=False)
def with_relatime_only_the_first_read_after_a_change_moves_atime(t):
    with mounted(t, "rel-first", "--relatime", "-o", "nodiratime") as folder:
        path = os.path.join(folder, "f")
        for turn in range(2):
            with open(path, "wb") as f:
                f.write(b"0123456789")
            t.true(atime_moves(path, read_some, path), f"the first read, {turn}")
            t.true(not atime_moves(path, read_some, path), f"the second one, {turn}")
        os.mkdir(os.path.join(folder, "d"))
        t.true(not atime_moves(os.path.join(folder, "d"), os.listdir, os.path.join(folder, "d")), "directories: nodiratime")


@case(only="epochfs", lasting=False)
def without_being_asked_no_mount_moves_atime(t):
    with mounted(t, "none") as folder:
        path = os.path.join(folder, "f")
        with open(path, "wb") as f:
            f.write(b"0123456789")
        t.true(not atime_moves(path, read_some, path), "a file")
        t.true(not atime_moves(folder, os.listdir, folder), "a directory")


@case(only="epochfs", lasting=False)
def another_mount_sees_the_access_times_at_once(t):
    if not every_read_counts(t):
        return
    with mounted(t, "strict-two", "--strictatime") as folder:
        server = t.site.main_mount.server
        other = server.mount("strict-two", name="strict-other", options=["--strictatime"])
        try:
            here, there = os.path.join(folder, "f"), os.path.join(other.point, "f")
            with open(here, "wb") as f:
                f.write(b"0123456789")
            for turn in range(5):
                t.true(atime_moves(here, read_some, there), f"read there, seen here, {turn}")
                t.true(atime_moves(there, read_some, here), f"read here, seen there, {turn}")
        finally:
            other.umount()
