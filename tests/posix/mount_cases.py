"""What the mount itself must do: read-only, sub-folders, dead mount points."""
import contextlib
import errno as E
import mmap
import os

import aio
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


def remount(t, volume, point, options):
    """As mount(8) has it done: its exit code, and what it said."""
    code, out, err = t.site.run([t.site.binary, "mount", volume, point, "-o", f"remount,{options}" if options else "remount"], check=False)
    return code, out + err


@case(only="epochfs", lasting=False)
def a_live_mount_is_made_read_only_and_writable_again(t):
    server = t.site.main_mount.server
    server.volume("turned")
    mount = server.mount("turned", name="turned")
    path = lambda n: os.path.join(mount.point, n)
    try:
        os.mkdir(path("sub"))
        for turn in range(2):
            fd = os.open(path("f"), os.O_CREAT | os.O_RDWR | os.O_TRUNC)
            os.pwrite(fd, bytes([65 + turn]) * 300000, 0)
            code, text = remount(t, "turned", mount.point, "ro")
            t.true(code == 1 and "open for writing" in text, f"refused while a file is open for writing: {text}")
            os.pwrite(fd, b"still", 300000)
            os.close(fd)
            reading = os.open(path("f"), os.O_RDONLY)
            t.equal(remount(t, "turned", mount.point, "ro"), (0, ""), "read-only")
            figures = server.json("status", mount.point)["figures"]
            t.equal(figures["unstored_bytes"] if not figures["writeback_synced_files"] else 0, 0, "all is stored, or synced")
            refuses_changes(t, mount.point)
            t.content(path("f"), bytes([65 + turn]) * 300000 + b"still")
            t.equal(os.pread(reading, 10, 299999), bytes([65 + turn]) + b"still", "by a descriptor from before")
            t.true(os.statvfs(mount.point).f_flag & os.ST_RDONLY, "statfs says read-only")
            t.equal(remount(t, "turned", mount.point, ""), (0, ""), "nothing changed")
            t.true(os.statvfs(mount.point).f_flag & os.ST_RDONLY, "it is still")
            t.equal(remount(t, "turned", mount.point, "rw"), (0, ""), "writable")
            os.close(reading)
            with open(path("f"), "ab") as f:
                f.write(b"more")
            t.equal(os.stat(path("f")).st_size, 300009, "size")
            os.mkdir(path(f"d{turn}"))
    finally:
        mount.umount()


@case(only="epochfs", lasting=False)
def a_mount_that_was_made_to_read_stays_so(t):
    server = t.site.main_mount.server
    server.volume("kept-ro")
    with_f = server.mount("kept-ro", name="kept-rw")
    with open(os.path.join(with_f.point, "f"), "wb") as f:
        f.write(b"content")
    os.mkdir(os.path.join(with_f.point, "sub"))
    with_f.umount()
    for options in (["--ro"], ["--ro", "--shared-locks"]):
        mount = server.mount("kept-ro", name="kept-ro", options=options)
        path = os.path.join(mount.point, "f")
        try:
            code, text = remount(t, "kept-ro", mount.point, "rw")
            t.true(code == 1 and "was mounted with --ro" in text, f"refused with the reason: {text}")
            t.equal(remount(t, "kept-ro", mount.point, ""), (0, ""), "nothing changed")
            t.equal(remount(t, "kept-ro", mount.point, "ro,relatime"), (0, ""), "what can be changed")
            refuses_changes(t, mount.point)
            # Not by us, but by mount(2), which asks nobody: then it is the mount that says no.
            t.site.run(["mount", "-i", "-o", "remount,rw", mount.point])
            for function, args in ((os.mkdir, (os.path.join(mount.point, "d"),)), (os.unlink, (path,)), (os.truncate, (path, 0)),
                                   (os.chmod, (path, 0o600)), (os.rename, (path, path + "2"))):
                t.fails(E.EROFS, function, *args)
            t.fails(E.EROFS, write_to, path)
            t.content(path, b"content")
            t.equal(server.json("status", mount.point)["read_only"], True, "status says what is so")
        finally:
            mount.umount()


def write_to(path):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, b"x")
    finally:
        os.close(fd)


@case(only="epochfs", lasting=False)
def access_times_are_changed_on_a_live_mount(t):
    server = t.site.main_mount.server
    server.volume("atimes")
    mount = server.mount("atimes", name="atimes")
    path = os.path.join(mount.point, "f")

    def moves():
        before = os.stat(path).st_atime_ns
        t.content(path, b"content")
        return os.stat(path).st_atime_ns > before

    def options():
        with open("/proc/self/mounts", encoding="utf-8") as f:
            line, = [line for line in f if f" {mount.point} " in line]
        return line.split()[3].split(",")
    try:
        with open(path, "wb") as f:
            f.write(b"content")
        for named, shown, first, again in (("", "", False, False), ("strictatime", "--strictatime", True, True), ("", "--strictatime", True, True),
                                           ("ro", "--strictatime", False, False), ("rw", "--strictatime", True, True),
                                           ("relatime,noexec", "--relatime", False, False), ("nosuid", "--relatime", False, False),
                                           ("noatime,strictatime,exec", "--strictatime", True, True), ("noatime", "", False, False)):
            t.equal(remount(t, "atimes", mount.point, named), (0, ""), f"remount,{named}")
            words = [word for word in server.json("status", mount.point)["options"].split() if word.endswith("atime")]
            t.equal(words, [shown] if shown else [], f"status after {named}")
            t.equal((moves(), moves()), (first, again), f"reading moves atime after {named}")
        t.true("noatime" in options() and "nosuid" in options() and "noexec" not in options(), f"{options()}")
        t.equal(remount(t, "atimes", mount.point, "relatime"), (0, ""), "relatime")
        with open(path, "wb") as f:
            f.write(b"content")
        t.equal((moves(), moves()), (True, False), "relatime: once after a change")
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


@case(only="epochfs", lasting=False)
def what_was_written_asynchronously_with_o_dsync_is_there_after_a_crash(t):
    """The kernel syncs a file only after writes that the program has waited for."""
    if not aio.possible():
        return
    server, size = t.site.main_mount.server, 1 << 20
    server.volume("dsync-test")
    mount = server.mount("dsync-test", name="dsync")
    path, buffer = os.path.join(mount.point, "f"), mmap.mmap(-1, size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC)
    try:
        os.ftruncate(fd, size)      # what lengthens a file the program does wait for
        os.fsync(fd)
        buffer[:] = b"durable!" * (size // 8)
        with aio.Aio(4) as queue:
            for offset in range(0, size, size // 4):
                queue.write(fd, buffer, offset, size // 4, offset)
            queue.wait()
        mount.kill()
    finally:
        with contextlib.suppress(OSError):      # nobody is there to hear of it
            os.close(fd)
    mount.wait_dead()
    mount.start()
    t.content(path, bytes(buffer))
    mount.umount()
