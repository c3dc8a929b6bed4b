"""statfs and limits."""
import errno as E
import os

from suite import case


@case
def statfs_makes_sense(t):
    s = os.statvfs(t.dir)
    t.true(s.f_blocks > 0 and s.f_frsize >= 512, "there is a size")
    t.true(0 <= s.f_bavail <= s.f_bfree <= s.f_blocks, "free is not more than all")
    t.true(s.f_files > 0 and s.f_ffree <= s.f_files, "files")
    t.equal(s.f_namemax, 255, "longest name")
    fd = t.open(t.dir)
    t.equal(os.fstatvfs(fd).f_frsize, s.f_frsize)


@case
def blocks_are_counted(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(fd, b"x" * 1000000)
    os.fsync(fd)
    blocks = os.fstat(fd).st_blocks
    t.true(1000000 <= blocks * 512 < 1100000, f"{blocks} blocks for 1,000,000 bytes")
    os.ftruncate(fd, 0)
    t.equal(os.fstat(fd).st_blocks, 0)


@case(only="epochfs", lasting=False)
def a_limit_on_bytes_is_edquot_and_shown(t):
    server = t.site.main_mount.server
    server.volume("limited", "--max-bytes", "8MiB", "--retention", "0s")
    mount = server.mount("limited")
    try:
        s = os.statvfs(mount.point)
        t.equal(s.f_blocks * s.f_frsize, 8 << 20, "statfs shows the limit")
        path = os.path.join(mount.point, "f")
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        written = 0
        try:
            while written < 16 << 20:
                written += os.write(fd, bytes(1 << 20))
            t.true(False, "a write over the limit must fail")
        except OSError as error:
            t.equal(error.errno, E.EDQUOT)
        t.true(written <= 8 << 20 and written >= 7 << 20, f"{written} bytes went in")
        t.works(os.fsync, fd)
        t.true(os.statvfs(mount.point).f_bavail * s.f_frsize <= 1 << 20, "nothing is left")
        os.close(fd)
        os.unlink(path)
        t.works(lambda: open(path, "wb").write(bytes(4 << 20)), what="space comes back after unlink")
    finally:
        mount.umount()


@case(only="epochfs", lasting=False)
def a_limit_on_files_is_edquot(t):
    server = t.site.main_mount.server
    server.volume("few", "--max-files", "10", "--retention", "0s")
    mount = server.mount("few")
    try:
        made = 0
        try:
            for k in range(20):
                os.mkdir(os.path.join(mount.point, f"d{k}"))
                made += 1
        except OSError as error:
            t.equal(error.errno, E.EDQUOT)
        t.true(9 <= made <= 10, f"{made} were made")
        t.fails(E.EDQUOT, os.symlink, "x", os.path.join(mount.point, "s"))
        os.rmdir(os.path.join(mount.point, "d0"))
        t.works(os.mkdir, os.path.join(mount.point, "again"))
    finally:
        mount.umount()
