"""mkdir, rmdir, setgid and sticky bits, link counts."""
import errno as E
import os
import stat

from suite import case
from users import ANNA, BEN, TEAM


@case
def a_new_folder_is_empty_and_has_two_links(t):
    os.mkdir(t.path("d"), 0o750)
    st = os.stat(t.path("d"))
    t.true(stat.S_ISDIR(st.st_mode), "a folder")
    t.mode(t.path("d"), 0o750)
    t.equal(st.st_nlink, 2)
    t.equal(t.names(t.path("d")), [])
    t.equal(os.stat(t.path("d", ".")).st_ino, st.st_ino)
    t.equal(os.stat(t.path("d", "..")).st_ino, os.stat(t.dir).st_ino)


@case
def mkdir_refuses(t):
    t.file("f")
    t.folder("d")
    os.symlink("nowhere", t.path("s"))
    t.fails(E.EEXIST, os.mkdir, t.path("d"))
    t.fails(E.EEXIST, os.mkdir, t.path("f"))
    t.fails(E.EEXIST, os.mkdir, t.path("s"))
    t.fails(E.ENOENT, os.mkdir, t.path("none", "d"))
    t.fails(E.ENOTDIR, os.mkdir, t.path("f", "d"))
    t.fails(E.ENAMETOOLONG, os.mkdir, t.path("n" * 256))
    t.folder("closed", 0o555)
    t.fails(E.EACCES, os.mkdir, t.path("closed", "x"), user=ANNA)


@case
def rmdir_refuses(t):
    t.file("f")
    t.folder("full")
    t.file("full/x")
    t.fails((E.ENOTEMPTY, E.EEXIST), os.rmdir, t.path("full"))
    t.fails(E.ENOTDIR, os.rmdir, t.path("f"))
    t.fails(E.ENOENT, os.rmdir, t.path("none"))
    t.fails(E.EINVAL, os.rmdir, t.path("full", "."))
    t.fails((E.ENOTEMPTY, E.EEXIST, E.EINVAL), os.rmdir, t.path("full", ".."))
    os.unlink(t.path("full", "x"))
    t.works(os.rmdir, t.path("full"))
    t.folder("annas", 0o755, ANNA)
    t.folder("annas/sub", 0o755, ANNA)
    t.fails(E.EACCES, os.rmdir, t.path("annas", "sub"), user=BEN)


@case
def link_counts_follow_subfolders(t):
    p = t.folder("p")
    for k in range(5):
        t.folder(f"p/{k}")
    t.file("p/file")
    t.equal(os.stat(p).st_nlink, 7)
    os.rmdir(t.path("p", "3"))
    t.equal(os.stat(p).st_nlink, 6)


@case
def changes_move_the_folders_times_not_its_parents(t):
    d = t.folder("d")
    for name, change in (("mkdir", lambda: os.mkdir(t.path("d", "sub"))), ("create", lambda: t.file("d/f")),
                         ("symlink", lambda: os.symlink("x", t.path("d", "s"))), ("rmdir", lambda: os.rmdir(t.path("d", "sub")))):
        t.tick()
        before, parent = os.stat(d), os.stat(t.dir)
        change()
        after = os.stat(d)
        t.true(after.st_mtime_ns > before.st_mtime_ns, f"{name} moves mtime")
        t.true(after.st_ctime_ns > before.st_ctime_ns, f"{name} moves ctime")
        t.equal(os.stat(t.dir).st_mtime_ns, parent.st_mtime_ns, f"{name} leaves the parent")


@case
def setgid_folders_hand_down_their_group(t):
    d = t.folder("d", 0o2777)
    os.chown(d, 0, TEAM)
    os.chmod(d, 0o2777)
    t.works(os.mkdir, t.path("d", "sub"), 0o755, user=ANNA)
    t.owner(t.path("d", "sub"), ANNA.uid, TEAM)
    t.true(os.stat(t.path("d", "sub")).st_mode & stat.S_ISGID, "a subfolder is setgid, too")

    def make():
        os.close(os.open(t.path("d", "file"), os.O_CREAT | os.O_WRONLY, 0o644))
    t.works(make, user=ANNA)
    t.owner(t.path("d", "file"), ANNA.uid, TEAM)
    t.mode(t.path("d", "file"), 0o644)


@case(lasting=False)
def a_removed_folder_that_is_open_is_empty_and_dead(t):
    d = t.folder("d")
    fd = t.open(d)
    os.rmdir(d)
    t.equal(os.listdir(fd), [])
    t.fails(E.ENOENT, os.mkdir, "x", 0o755, dir_fd=fd)
    t.fails(E.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
    t.equal(os.fstat(fd).st_nlink, 0)


@case
def deep_trees_work(t):
    path = t.dir
    for k in range(60):
        path = os.path.join(path, f"level{k}")
        os.mkdir(path)
    with open(os.path.join(path, "bottom"), "wb") as f:
        f.write(b"deep")
    t.content(os.path.join(path, "bottom"), b"deep")
    t.equal(sum(len(f) for _, _, f in os.walk(t.dir)), 1)


@case
def the_umask_applies_to_folders(t):
    old = os.umask(0o027)
    os.mkdir(t.path("d"), 0o777)
    os.umask(old)
    t.mode(t.path("d"), 0o750)
    os.mkdir(t.path("sticky"), 0o1777)
    t.mode(t.path("sticky"), 0o1755)
