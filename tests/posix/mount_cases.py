"""What the mount itself must do: read-only, sub-folders, dead mount points."""
import errno as E
import os

import syscalls as sys_
from suite import case


def refuses_changes(t, point):
    path = lambda n: os.path.join(point, n)
    for function, args in ((os.open, (path("new"), os.O_CREAT | os.O_WRONLY)), (os.open, (path("f"), os.O_WRONLY)), (os.mkdir, (path("d"),)),
                           (os.unlink, (path("f"),)), (os.rename, (path("f"), path("g"))), (os.link, (path("f"), path("g"))),
                           (os.symlink, ("x", path("s"))), (os.chmod, (path("f"), 0o600)), (os.chown, (path("f"), 1, 1)),
                           (os.truncate, (path("f"), 0)), (os.utime, (path("f"), (1, 1))), (os.setxattr, (path("f"), "user.a", b"1")),
                           (os.mkfifo, (path("p"),)), (os.rmdir, (path("sub"),)), (sys_.renameat2, (path("f"), path("sub"), sys_.RENAME_EXCHANGE))):
        t.fails(E.EROFS, function, *args)


@case(only="epochfs", lasting=False)
def a_read_only_mount_reads_and_refuses_every_change(t):
    server = t.site.main_mount.server
    server.volume("ro-test")
    writable = server.mount("ro-test", name="rw")
    with open(os.path.join(writable.point, "f"), "wb") as f:
        f.write(b"content")
    os.mkdir(os.path.join(writable.point, "sub"))
    writable.umount()
    mount = server.mount("ro-test", name="ro", options=["--ro"])
    try:
        t.content(os.path.join(mount.point, "f"), b"content")
        t.equal(sorted(os.listdir(mount.point)), ["f", "sub"])
        refuses_changes(t, mount.point)
        t.true(os.statvfs(mount.point).f_flag & os.ST_RDONLY, "statfs says read-only")
    finally:
        mount.umount()


@case(only="epochfs", lasting=False)
def what_a_second_mount_changes_is_seen_at_once(t):
    """The first one was alone and its kernel was allowed to keep what it knew."""
    server = t.site.main_mount.server
    server.volume("two-test")
    first = server.mount("two-test", name="first")
    one = lambda *names: os.path.join(first.point, *names)
    os.makedirs(one("d", "sub"))
    for i in range(300):
        with open(one("d", f"f{i}"), "wb") as f:
            f.write(b"x")
    for i in range(300):
        os.stat(one("d", f"f{i}"))
    fd, here = os.open(one("d", "f1"), os.O_RDONLY), os.getcwd()
    os.chdir(one("d", "sub"))
    t.fails(E.ENOENT, os.stat, one("d", "new"))
    second = server.mount("two-test", name="second")
    two = lambda *names: os.path.join(second.point, *names)
    try:
        t.equal(len(os.listdir(two("d"))), 301, "names the first made are there")
        os.chmod(two("d", "f1"), 0o600)
        t.equal(os.stat(one("d", "f1")).st_mode & 0o777, 0o600, "mode by name")
        t.equal(os.fstat(fd).st_mode & 0o777, 0o600, "mode by descriptor")
        os.rename(two("d", "f2"), two("d", "g2"))
        t.fails(E.ENOENT, os.stat, one("d", "f2"))
        t.equal(os.stat(one("d", "g2")).st_ino, os.stat(two("d", "g2")).st_ino, "renamed")
        os.unlink(two("d", "f3"))
        t.fails(E.ENOENT, os.open, one("d", "f3"), os.O_RDONLY)
        os.close(os.open(two("d", "new"), os.O_CREAT | os.O_EXCL))
        t.fails(E.EEXIST, os.open, one("d", "new"), os.O_CREAT | os.O_EXCL)
        os.close(os.open(one("d", "newer"), os.O_CREAT | os.O_EXCL))
        t.fails(E.EEXIST, os.open, two("d", "newer"), os.O_CREAT | os.O_EXCL)
        os.truncate(two("d", "f4"), 1000)
        t.equal(os.stat(one("d", "f4")).st_size, 1000, "size")
        os.rename(two("d"), two("e"))
        t.fails(E.ENOENT, os.stat, one("d"))
        t.equal(os.stat(one("e", "sub")).st_ino, os.stat(".").st_ino, "a directory somebody is in")
        t.equal(os.getcwd(), one("e", "sub"), "where that is")
    finally:
        os.chdir(here)
        os.close(fd)
        second.umount()
    for i in range(5, 100):
        t.fails(E.EEXIST, os.open, one("e", f"f{i}"), os.O_CREAT | os.O_EXCL)
    first.umount()


@case(only="epochfs", lasting=False)
def a_subfolder_can_be_the_root_of_a_mount(t):
    server = t.site.main_mount.server
    server.volume("sub-test")
    whole = server.mount("sub-test", name="whole")
    os.makedirs(os.path.join(whole.point, "a", "b"))
    with open(os.path.join(whole.point, "a", "b", "inside"), "wb") as f:
        f.write(b"x")
    whole.umount()
    part = server.mount("sub-test", name="part", options=["--subdir", "a/b"])
    try:
        t.equal(os.listdir(part.point), ["inside"])
        with open(os.path.join(part.point, "new"), "wb") as f:
            f.write(b"y")
        os.rename(os.path.join(part.point, "new"), os.path.join(part.point, "newer"))
        t.equal(os.stat(os.path.join(part.point, "..")).st_ino, os.stat(os.path.dirname(part.point)).st_ino, ".. leads out of the mount")
    finally:
        part.umount()
    whole = server.mount("sub-test", name="whole")
    t.equal(sorted(os.listdir(os.path.join(whole.point, "a", "b"))), ["inside", "newer"])
    whole.umount()


@case(only="epochfs", lasting=False)
def a_mount_point_left_dead_is_replaced(t):
    server = t.site.main_mount.server
    server.volume("dead-test")
    mount = server.mount("dead-test", name="dead")
    with open(os.path.join(mount.point, "f"), "wb") as f:
        f.write(b"kept")
        f.flush()
        os.fsync(f.fileno())
    mount.kill()
    mount.wait_exit(10, "the killed mount to be gone")
    mount.wait_dead()
    t.fails(E.ENOTCONN, os.listdir, mount.point)
    mount.start()
    t.content(os.path.join(mount.point, "f"), b"kept")
    mount.umount()
