"""open(2): creating, flags, and who may."""
import errno as E
import os
import stat

import syscalls as sys_
from suite import case
from users import ANNA, BEN, ROOT


@case
def creating_a_file_gives_an_empty_regular_file(t):
    fd = t.open(t.path("new"), os.O_RDWR | os.O_CREAT, 0o640)
    st = os.fstat(fd)
    t.true(stat.S_ISREG(st.st_mode), "it is a regular file")
    t.oct(st.st_mode & 0o7777, 0o640, "mode")
    t.equal(st.st_size, 0, "size")
    t.equal(st.st_nlink, 1, "links")
    t.equal(st.st_blocks, 0, "blocks")
    t.equal((st.st_uid, st.st_gid), (0, 0), "owner")
    t.equal(os.read(fd, 10), b"", "reading it")
    named = os.stat(t.path("new"))
    t.equal((named.st_ino, named.st_dev), (st.st_ino, st.st_dev), "fstat and stat agree on the inode")


@case
def the_umask_takes_bits_from_a_new_files_mode(t):
    for umask, mode, want in ((0o022, 0o666, 0o644), (0o077, 0o777, 0o700), (0o000, 0o666, 0o666), (0o027, 0o640, 0o640),
                              (0o777, 0o777, 0), (0o022, 0o4755, 0o4755), (0o022, 0o2755, 0o2755), (0o022, 0o1777, 0o1755)):
        old = os.umask(umask)
        try:
            os.close(os.open(t.path(f"{umask:o}-{mode:o}"), os.O_CREAT | os.O_WRONLY, mode))
        finally:
            os.umask(old)
        t.mode(t.path(f"{umask:o}-{mode:o}"), want, f"mode {mode:o} under umask {umask:o}")


@case
def a_new_file_belongs_to_who_made_it(t):
    def make(name):
        os.close(os.open(t.path(name), os.O_CREAT | os.O_WRONLY, 0o600))
    for user in (ROOT, ANNA, BEN):
        t.works(make, f"of-{user.name}", user=user)
        t.owner(t.path(f"of-{user.name}"), user.uid, user.gid)


@case
def o_creat_on_an_existing_file_changes_nothing(t):
    path = t.file("there", b"content", 0o600, ANNA)
    before = os.stat(path)
    t.tick()
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o777))
    after = os.stat(path)
    t.content(path, b"content")
    t.oct(after.st_mode, before.st_mode, "mode")
    t.equal(after.st_uid, ANNA.uid, "owner")
    t.equal((after.st_mtime_ns, after.st_ctime_ns), (before.st_mtime_ns, before.st_ctime_ns), "times")


@case
def o_excl_refuses_a_name_that_is_taken(t):
    t.file("file")
    t.folder("folder")
    os.symlink("file", t.path("link"))
    os.symlink("nowhere", t.path("dangling"))
    sys_.mknod(t.path("fifo"), stat.S_IFIFO | 0o600)
    for name in ("file", "folder", "link", "dangling", "fifo"):
        t.fails(E.EEXIST, os.open, t.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, what=f"O_EXCL on a {name}")
    t.true(not os.path.lexists(t.path("nowhere")), "O_EXCL does not follow a dangling link")
    fd = t.works(os.open, t.path("fresh"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.close(fd)


@case
def of_many_racing_for_one_name_with_o_excl_one_wins(t):
    for round_ in range(5):
        children = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                try:
                    os.open(t.path(f"prize{round_}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                    os._exit(1)
                except FileExistsError:
                    os._exit(0)
                except OSError:
                    os._exit(50)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        t.equal(sorted(codes), [0, 0, 0, 0, 0, 1], "exactly one winner")


@case
def o_creat_follows_a_dangling_link_and_makes_its_target(t):
    os.symlink("target", t.path("link"))
    os.close(os.open(t.path("link"), os.O_CREAT | os.O_WRONLY, 0o600))
    t.true(stat.S_ISREG(os.lstat(t.path("target")).st_mode), "the target is a file now")
    t.true(stat.S_ISLNK(os.lstat(t.path("link")).st_mode), "the link is still a link")


@case
def o_trunc_empties_and_moves_the_times(t):
    path = t.file("full", b"x" * 10000)
    before = os.stat(path)
    t.tick()
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    after = os.stat(path)
    t.equal(after.st_size, 0, "size")
    t.true(after.st_mtime_ns > before.st_mtime_ns, "mtime moves")
    t.true(after.st_ctime_ns > before.st_ctime_ns, "ctime moves")
    t.equal(after.st_ino, before.st_ino, "it is the same inode")
    t.file("again", b"y" * 100)
    os.close(os.open(t.path("again"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
    t.size(t.path("again"), 0)


@case
def o_trunc_is_seen_by_other_descriptors(t):
    path = t.file("shared", b"abcdef")
    fd = t.open(path)
    t.equal(os.read(fd, 3), b"abc")
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    t.equal(os.read(fd, 3), b"", "nothing left to read")
    t.equal(os.fstat(fd).st_size, 0)


@case
def o_trunc_needs_permission_to_write(t):
    path = t.file("anna", b"hers", 0o644, ANNA)
    t.fails(E.EACCES, os.open, path, os.O_WRONLY | os.O_TRUNC, user=BEN)
    t.fails(E.EACCES, os.open, path, os.O_RDONLY | os.O_TRUNC, user=BEN)
    t.content(path, b"hers")
    t.works(os.open, path, os.O_WRONLY | os.O_TRUNC, user=ANNA)
    t.size(path, 0)


@case
def o_directory_opens_folders_only(t):
    t.file("file")
    t.folder("folder")
    os.symlink("folder", t.path("link"))
    sys_.mknod(t.path("fifo"), stat.S_IFIFO | 0o600)
    t.fails(E.ENOTDIR, os.open, t.path("file"), os.O_RDONLY | os.O_DIRECTORY)
    t.fails(E.ENOTDIR, os.open, t.path("fifo"), os.O_RDONLY | os.O_DIRECTORY)
    t.fails(E.ENOENT, os.open, t.path("none"), os.O_RDONLY | os.O_DIRECTORY)
    t.fails(E.ENOTDIR, os.open, t.path("link"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.close(t.works(os.open, t.path("folder"), os.O_RDONLY | os.O_DIRECTORY))
    os.close(t.works(os.open, t.path("link"), os.O_RDONLY | os.O_DIRECTORY))


@case
def a_folder_cannot_be_opened_for_writing(t):
    t.folder("folder")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDONLY | os.O_CREAT):
        t.fails(E.EISDIR, os.open, t.path("folder"), flags, 0o600, what=f"open a folder with flags {flags:#x}")
    fd = t.open(t.path("folder"))
    t.fails(E.EISDIR, os.read, fd, 10)
    t.fails(E.EBADF, os.write, fd, b"x")
    t.fails(E.EINVAL, os.ftruncate, fd, 0)


@case
def o_nofollow_refuses_a_link_as_the_last_part(t):
    t.file("file", b"x")
    t.folder("folder")
    t.file("folder/inner", b"y")
    os.symlink("file", t.path("link"))
    os.symlink("folder", t.path("way"))
    t.fails(E.ELOOP, os.open, t.path("link"), os.O_RDONLY | os.O_NOFOLLOW)
    t.fails(E.ELOOP, os.open, t.path("link"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    os.close(t.works(os.open, t.path("way", "inner"), os.O_RDONLY | os.O_NOFOLLOW))
    fd = t.works(os.open, t.path("link"), os.O_PATH | os.O_NOFOLLOW)
    t.true(stat.S_ISLNK(os.fstat(fd).st_mode), "O_PATH with O_NOFOLLOW gives the link itself")
    os.close(fd)


@case
def o_path_gives_a_handle_without_reading(t):
    path = t.file("secret", b"x", 0o000)
    fd = os.open(path, os.O_PATH)
    try:
        t.fails(E.EBADF, os.read, fd, 1)
        t.equal(os.fstat(fd).st_size, 1, "but its attributes can be seen")
    finally:
        os.close(fd)


@case
def o_append_writes_at_the_end_wherever_the_position_is(t):
    path = t.file("log", b"first\n")
    fd = t.open(path, os.O_RDWR | os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    t.equal(os.write(fd, b"second\n"), 7)
    t.equal(os.lseek(fd, 0, os.SEEK_CUR), 13, "the position follows the write")
    t.equal(os.pread(fd, 100, 0), b"first\nsecond\n")
    os.pwrite(fd, b"third\n", 0)
    t.equal(os.pread(fd, 100, 0), b"first\nsecond\nthird\n", "on Linux pwrite appends, too")


@case
def two_appenders_lose_nothing(t):
    path = t.file("log")
    children = []
    for who in b"ABCD":
        pid = os.fork()
        if pid == 0:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            for number in range(50):
                os.write(fd, b"%c%05d%s\n" % (who, number, b"." * (number % 37)))
            os._exit(0)
        children.append(pid)
    for pid in children:
        t.equal(os.waitpid(pid, 0)[1], 0)
    lines = t.read(path).split(b"\n")[:-1]
    t.equal(len(lines), 200, "every record is there, whole")
    for who in b"ABCD":
        mine = [int(line[1:6]) for line in lines if line[0] == who]
        t.equal(mine, list(range(50)), f"records of {chr(who)} are in order")


@case
def append_only_descriptors_share_the_end(t):
    path = t.file("log")
    a = t.open(path, os.O_WRONLY | os.O_APPEND)
    b = t.open(path, os.O_WRONLY | os.O_APPEND)
    for n in range(10):
        os.write(a, b"a%d" % n)
        os.write(b, b"b%d" % n)
    t.content(path, b"".join(b"a%db%d" % (n, n) for n in range(10)))


@case
def o_tmpfile_makes_a_nameless_file_that_linkat_can_name(t):
    fd = t.open(t.dir, os.O_TMPFILE | os.O_RDWR, 0o640)
    st = os.fstat(fd)
    t.equal(st.st_nlink, 0, "links of a nameless file")
    t.oct(st.st_mode, stat.S_IFREG | 0o640, "mode")
    t.equal(t.names(), [], "the folder stays empty")
    os.write(fd, b"nameless")
    sys_.linkat(f"/proc/self/fd/{fd}", t.path("named"), sys_.AT_SYMLINK_FOLLOW)
    t.equal(t.names(), ["named"])
    t.content(t.path("named"), b"nameless")
    t.equal(os.fstat(fd).st_nlink, 1, "links after linkat")
    os.write(fd, b" no more")
    t.content(t.path("named"), b"nameless no more")


@case
def o_tmpfile_by_linkat_with_an_empty_path(t):
    fd = t.open(t.dir, os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(fd, b"data" * 1000)
    os.fsync(fd)
    t.works(sys_.linkat, "", t.path("named"), sys_.AT_EMPTY_PATH, fd)
    t.content(t.path("named"), b"data" * 1000)
    t.fails(E.EEXIST, sys_.linkat, "", t.path("named"), sys_.AT_EMPTY_PATH, fd)


@case
def o_tmpfile_with_o_excl_can_never_be_named(t):
    fd = t.open(t.dir, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    os.write(fd, b"x" * 5000)
    t.equal(os.pread(fd, 10000, 0), b"x" * 5000)
    t.fails(E.ENOENT, sys_.linkat, f"/proc/self/fd/{fd}", t.path("named"), sys_.AT_SYMLINK_FOLLOW)
    t.equal(t.names(), [])


@case
def o_tmpfile_asks_for_write_access_and_a_folder(t):
    t.file("file")
    t.fails(E.EINVAL, os.open, t.dir, os.O_TMPFILE | os.O_RDONLY, 0o600)
    t.fails(E.ENOTDIR, os.open, t.path("file"), os.O_TMPFILE | os.O_RDWR, 0o600)
    t.fails(E.ENOENT, os.open, t.path("none"), os.O_TMPFILE | os.O_RDWR, 0o600)
    t.folder("closed", 0o755)
    t.fails(E.EACCES, os.open, t.path("closed"), os.O_TMPFILE | os.O_RDWR, 0o600, user=ANNA)
    t.works(os.open, t.dir, os.O_TMPFILE | os.O_RDWR, 0o600, user=ANNA)


@case
def missing_names_and_wrong_parts_are_told_apart(t):
    t.file("file")
    os.symlink("loop", t.path("loop"))
    t.fails(E.ENOENT, os.open, t.path("none"), os.O_RDONLY)
    t.fails(E.ENOENT, os.open, t.path("none", "below"), os.O_RDWR | os.O_CREAT)
    t.fails(E.ENOTDIR, os.open, t.path("file", "below"), os.O_RDONLY)
    t.fails(E.ENOTDIR, os.open, t.path("file", "below"), os.O_RDWR | os.O_CREAT)
    t.fails(E.ENOTDIR, os.open, t.path("file") + "/", os.O_RDONLY)
    t.fails(E.EISDIR, os.open, t.path("new") + "/", os.O_RDWR | os.O_CREAT)
    t.fails(E.ELOOP, os.open, t.path("loop"), os.O_RDONLY)
    t.fails(E.ELOOP, os.open, t.path("loop", "below"), os.O_RDONLY)
    t.fails(E.ENOENT, sys_.openat, "", os.O_RDONLY)


@case
def opening_asks_for_the_permissions_of_its_mode(t):
    for mode, allowed in ((0o600, "rw"), (0o400, "r"), (0o200, "w"), (0o000, ""), (0o100, "")):
        path = t.file(f"m{mode:o}", b"x", mode, ANNA)
        for flags, needs in ((os.O_RDONLY, "r"), (os.O_WRONLY, "w"), (os.O_RDWR, "rw")):
            if all(n in allowed for n in needs):
                t.works(os.open, path, flags, user=ANNA, what=f"open {mode:o} for {needs}")
            else:
                t.fails(E.EACCES, os.open, path, flags, user=ANNA, what=f"open {mode:o} for {needs}")
        os.close(t.works(os.open, path, os.O_RDWR, what=f"root opens {mode:o}"))


@case
def creating_needs_write_and_search_on_the_folder(t):
    for mode, want in ((0o777, 0), (0o733, 0), (0o755, E.EACCES), (0o766, E.EACCES), (0o722, E.EACCES), (0o711, E.EACCES)):
        t.folder(f"d{mode:o}", mode)
        path = t.path(f"d{mode:o}", "new")
        if want:
            t.fails(want, os.open, path, os.O_CREAT | os.O_WRONLY, 0o600, user=ANNA, what=f"create in {mode:o}")
        else:
            t.works(os.open, path, os.O_CREAT | os.O_WRONLY, 0o600, user=ANNA, what=f"create in {mode:o}")


@case
def a_file_created_read_only_can_be_written_by_its_descriptor(t):
    def make():
        fd = os.open(t.path("odd"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o000)
        os.write(fd, b"written all the same")
        return os.pread(fd, 100, 0)
    t.equal(t.works(make, user=ANNA), b"written all the same")
    t.fails(E.EACCES, os.open, t.path("odd"), os.O_RDONLY, user=ANNA)
    t.mode(t.path("odd"), 0)


@case
def a_descriptor_keeps_its_rights_after_chmod(t):
    path = t.file("file", b"before", 0o644, ANNA)

    def act():
        fd = os.open(path, os.O_RDWR)
        os.chmod(path, 0)
        os.write(fd, b"after ")
        return os.pread(fd, 6, 0)
    t.equal(t.works(act, user=ANNA), b"after ")


@case
def the_access_mode_of_a_descriptor_is_enforced(t):
    path = t.file("file", b"data")
    reading, writing = t.open(path, os.O_RDONLY), t.open(path, os.O_WRONLY)
    t.fails(E.EBADF, os.write, reading, b"x")
    t.fails(E.EBADF, os.read, writing, 1)
    t.fails((E.EBADF, E.EINVAL), os.ftruncate, reading, 0)
    t.fails(E.EBADF, sys_.fallocate, reading, 0, 0, 10)


@case
def running_a_file_and_writing_it_exclude_each_other(t):
    source = os.path.realpath("/bin/sleep")
    path = t.file("program", open(source, "rb").read(), 0o755)
    writing = os.open(path, os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writing)
            os.execv(path, [path, "60"])
        except OSError as error:
            os._exit(error.errno)
    # The parent still holds the file open for writing.
    t.equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), E.ETXTBSY, "exec of a file open for writing")
    os.close(writing)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)           # `tell` closes on exec: end of file tells that it runs
        try:
            os.execv(path, [path, "60"])
        finally:
            os._exit(1)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    try:
        t.fails(E.ETXTBSY, os.open, path, os.O_WRONLY)
        t.fails(E.ETXTBSY, os.truncate, path, 0)
        os.close(t.works(os.open, path, os.O_RDONLY))
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    os.close(t.works(os.open, path, os.O_WRONLY))


@case
def programs_and_scripts_run_from_it(t):
    t.file("script", b"#!/bin/sh\nexit 7\n", 0o755)
    t.equal(os.spawnv(os.P_WAIT, t.path("script"), ["script"]), 7)
    t.file("noexec", b"#!/bin/sh\nexit 7\n", 0o644)
    t.fails(E.EACCES, os.execv, t.path("noexec"), ["noexec"])
    t.fails(E.EACCES, os.execv, t.path("noexec"), ["noexec"], user=ANNA)


@case
def many_descriptors_on_one_file_see_one_file(t):
    path = t.file("file")
    descriptors = [t.open(path, os.O_RDWR) for _ in range(200)]
    for n, fd in enumerate(descriptors):
        os.pwrite(fd, b"%03d." % n, n * 4)
    t.content(path, b"".join(b"%03d." % n for n in range(200)))
    t.equal(os.pread(descriptors[0], 4, 199 * 4), b"199.")


@case
def o_sync_and_o_dsync_writes_are_there(t):
    for name, flag in (("sync", os.O_SYNC), ("dsync", os.O_DSYNC)):
        fd = t.open(t.path(name), os.O_CREAT | os.O_RDWR | flag, 0o600)
        os.write(fd, b"durable")
        t.equal(os.pread(fd, 10, 0), b"durable", name)


@case
def fsync_works_on_files_and_folders(t):
    fd = t.open(t.path("file"), os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"x" * 100000)
    t.works(os.fsync, fd)
    t.works(os.fdatasync, fd)
    folder = t.open(t.dir, os.O_RDONLY | os.O_DIRECTORY)
    t.works(os.fsync, folder)
    t.works(os.fdatasync, folder)
    t.works(sys_.syncfs, folder)
    reading = t.open(t.path("file"), os.O_RDONLY)
    t.works(os.fsync, reading, what="fsync of a descriptor for reading")
