"""Hard links and symbolic links."""
import errno as E
import os
import stat

import syscalls as sys_
from suite import case
from users import ANNA, BEN


@case
def two_names_are_one_file(t):
    a = t.file("a", b"one")
    os.link(a, t.path("b"))
    st = os.stat(t.path("b"))
    t.equal((st.st_ino, st.st_nlink), (os.stat(a).st_ino, 2))
    with open(t.path("b"), "ab") as f:
        f.write(b" two")
    t.content(a, b"one two")
    os.chmod(a, 0o600)
    t.mode(t.path("b"), 0o600)
    os.unlink(a)
    t.content(t.path("b"), b"one two")
    t.equal(os.stat(t.path("b")).st_nlink, 1)


@case
def link_refuses(t):
    a, d = t.file("a"), t.folder("d")
    t.fails(E.EEXIST, os.link, a, a)
    t.fails(E.EEXIST, os.link, a, d)
    t.fails(E.EPERM, os.link, d, t.path("e"))
    t.fails(E.ENOENT, os.link, t.path("none"), t.path("e"))
    t.fails(E.ENOENT, os.link, a, t.path("none", "e"))
    t.fails(E.ENOTDIR, os.link, a, t.path("a", "e"))
    t.fails(E.ENAMETOOLONG, os.link, a, t.path("n" * 256))
    t.fails(E.EXDEV, os.link, a, "/proc/x" if not os.path.exists("/dev/shm") else "/dev/shm/epochfs-posix-link")


@case
def a_hard_link_to_a_symbolic_link_is_one(t):
    os.symlink("nowhere", t.path("s"))
    os.link(t.path("s"), t.path("s2"), follow_symlinks=False)
    t.equal(os.readlink(t.path("s2")), "nowhere")
    t.equal(os.lstat(t.path("s")).st_nlink, 2)


@case
def link_moves_ctime_and_the_folders_times(t):
    a = t.file("a", b"x")
    before, folder = os.stat(a), os.stat(t.dir)
    t.tick()
    folder = os.stat(t.dir)
    os.link(a, t.path("b"))
    after = os.stat(a)
    t.true(after.st_ctime_ns > before.st_ctime_ns, "ctime")
    t.equal(after.st_mtime_ns, before.st_mtime_ns, "mtime")
    t.true(os.stat(t.dir).st_mtime_ns > folder.st_mtime_ns, "mtime of the folder")


@case
def many_links(t):
    a = t.file("a", b"x")
    for k in range(300):
        os.link(a, t.path(f"l{k}"))
    t.equal(os.stat(a).st_nlink, 301)
    for k in range(300):
        os.unlink(t.path(f"l{k}"))
    t.equal(os.stat(a).st_nlink, 1)


@case
def a_symbolic_link_holds_any_text(t):
    for k, target in enumerate(("x", "/absolute", "a/b/../c", "x" * 255, "d/" * 2047 + "e", "spaces and \u00e9")):
        os.symlink(target, t.path(str(k)))
        t.equal(os.readlink(t.path(str(k))), target)
        st = os.lstat(t.path(str(k)))
        t.true(stat.S_ISLNK(st.st_mode), "it is a link")
        t.equal(st.st_size, len(os.fsencode(target)), "size is the length of the target")
    t.fails(E.ENAMETOOLONG, os.symlink, "x" * 4096, t.path("long"))
    t.fails(E.ENOENT, os.symlink, "", t.path("empty"))
    t.fails(E.EEXIST, os.symlink, "x", t.path("0"))
    t.fails(E.ENOENT, os.symlink, "x", t.path("none", "s"))
    t.fails(E.EINVAL, os.readlink, t.file("plain"))


@case
def following_and_not_following(t):
    t.file("f", b"data", 0o644)
    t.folder("d")
    t.file("d/in", b"inside")
    os.symlink("f", t.path("to-f"))
    os.symlink("d", t.path("to-d"))
    os.symlink("to-f", t.path("to-to-f"))
    t.content(t.path("to-to-f"), b"data")
    t.content(t.path("to-d", "in"), b"inside")
    t.fails(E.ENOTDIR, os.stat, t.path("to-f", "x"))
    os.unlink(t.path("to-f"))
    t.fails(E.ENOENT, os.stat, t.path("to-to-f"))
    t.content(t.path("f"), b"data")
    t.fails(E.ENOTDIR, os.rmdir, t.path("to-d"))


@case
def loops_end_in_eloop(t):
    os.symlink("b", t.path("a"))
    os.symlink("a", t.path("b"))
    os.symlink("self", t.path("self"))
    for name in ("a", "b", "self"):
        t.fails(E.ELOOP, os.stat, t.path(name))
        t.fails(E.ELOOP, os.open, t.path(name), os.O_RDONLY)
        t.fails(E.ELOOP, os.stat, t.path(name, "x"))
    previous = t.file("0")
    for k in range(1, 46):
        os.symlink(str(k - 1), t.path(str(k)))
    t.works(os.stat, t.path("40"))
    t.fails(E.ELOOP, os.stat, t.path("45"))
    t.true(previous, "made")


@case
def symbolic_links_have_an_owner(t):
    t.works(os.symlink, "x", t.path("s"), user=ANNA)
    t.owner(t.path("s"), ANNA.uid, ANNA.gid)
    t.fails(E.EPERM, os.lchown, t.path("s"), BEN.uid, -1, user=BEN)
    os.lchown(t.path("s"), 7, 8)
    t.owner(t.path("s"), 7, 8)


@case
def a_nameless_file_gets_a_name_by_linkat(t):
    fd = t.open(t.dir, os.O_RDWR | sys_.O_TMPFILE, 0o640)
    os.write(fd, b"no name yet")
    t.equal(os.fstat(fd).st_nlink, 0, "links before")
    t.equal(t.names(), [])
    sys_.linkat(f"/proc/self/fd/{fd}", t.path("named"), sys_.AT_SYMLINK_FOLLOW)
    t.content(t.path("named"), b"no name yet")
    t.equal(os.fstat(fd).st_nlink, 1, "links after")
    t.mode(t.path("named"), 0o640)
