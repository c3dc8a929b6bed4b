"""unlink, also of files in use."""
import errno as E
import os

import syscalls as sys_
from suite import case
from users import ANNA, BEN


@case
def an_open_file_outlives_its_name(t):
    path = t.file("f", b"still here")
    fd = t.open(path, os.O_RDWR)
    os.unlink(path)
    t.fails(E.ENOENT, os.stat, path)
    t.equal(os.pread(fd, 100, 0), b"still here")
    os.pwrite(fd, b"and written", 100)
    t.equal(os.fstat(fd).st_size, 111)
    t.equal(os.fstat(fd).st_nlink, 0)
    os.fsync(fd)
    os.ftruncate(fd, 5)
    t.equal(os.pread(fd, 100, 0), b"still")
    os.fchmod(fd, 0o600)
    os.fchown(fd, 5, 6)
    t.equal(os.fstat(fd).st_uid, 5)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    t.equal(os.read(again, 10), b"still", "opened again through /proc")
    os.close(again)


@case
def a_new_file_of_the_same_name_is_another(t):
    path = t.file("f", b"old")
    fd = t.open(path)
    os.unlink(path)
    t.file("f", b"new")
    t.equal(os.read(fd, 10), b"old")
    t.content(path, b"new")


@case
def unlink_refuses(t):
    t.folder("d")
    t.file("f")
    t.fails(E.EISDIR, os.unlink, t.path("d"))
    t.fails(E.ENOENT, os.unlink, t.path("none"))
    t.fails(E.ENOTDIR, os.unlink, t.path("f", "x"))
    t.fails(E.ENAMETOOLONG, os.unlink, t.path("n" * 256))
    t.fails((E.EISDIR, E.EPERM, E.EBUSY, E.EINVAL), os.unlink, t.path("d", "."))


@case
def unlink_moves_times_and_counts(t):
    a = t.file("a", b"x")
    os.link(a, t.path("b"))
    before = os.stat(a)
    t.tick()
    folder = os.stat(t.dir)
    os.unlink(t.path("b"))
    t.equal(os.stat(a).st_nlink, 1)
    t.true(os.stat(a).st_ctime_ns > before.st_ctime_ns, "ctime of the file")
    t.true(os.stat(t.dir).st_mtime_ns > folder.st_mtime_ns, "mtime of the folder")
    t.true(os.stat(t.dir).st_ctime_ns > folder.st_ctime_ns, "ctime of the folder")


@case
def who_may_unlink(t):
    t.folder("annas", 0o755, ANNA)
    t.file("annas/roots", b"", 0o600)
    t.fails(E.EACCES, os.unlink, t.path("annas", "roots"), user=BEN)
    t.works(os.unlink, t.path("annas", "roots"), user=ANNA)
    t.folder("sticky", 0o1777)
    t.file("sticky/annas", b"", 0o666, ANNA)
    t.fails((E.EPERM, E.EACCES), os.unlink, t.path("sticky", "annas"), user=BEN)
    t.works(os.unlink, t.path("sticky", "annas"), user=ANNA)
    t.folder("bens-sticky", 0o1777, BEN)
    t.file("bens-sticky/annas", b"", 0o666, ANNA)
    t.works(os.unlink, t.path("bens-sticky", "annas"), user=BEN, what="the owner of a sticky folder")


@case
def a_nameless_file_can_be_used_and_vanishes(t):
    fd = t.open(t.dir, os.O_RDWR | sys_.O_TMPFILE, 0o600)
    os.write(fd, b"x" * 100000)
    t.equal(os.pread(fd, 5, 99998), b"xx")
    t.equal(t.names(), [])
    t.equal(os.fstat(fd).st_nlink, 0)


@case
def thousands_of_short_lived_files_leave_nothing(t):
    for k in range(500):
        path = t.path(f"f{k % 7}")
        with open(path, "wb") as f:
            f.write(b"x" * (k * 13))
        os.unlink(path)
    t.equal(t.names(), [])
