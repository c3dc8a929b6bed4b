"""rename, renameat2."""
import errno as E
import os

import syscalls as sys_
from suite import case
from users import ANNA, BEN


@case
def a_file_keeps_its_inode_and_content(t):
    a = t.file("a", b"content", 0o600)
    inode = os.stat(a).st_ino
    os.rename(a, t.path("b"))
    t.fails(E.ENOENT, os.stat, a)
    t.equal(os.stat(t.path("b")).st_ino, inode)
    t.content(t.path("b"), b"content")


@case
def the_target_is_replaced_at_once(t):
    a, b = t.file("a", b"new"), t.file("b", b"old")
    fd = t.open(b)
    os.rename(a, b)
    t.content(b, b"new")
    t.equal(os.read(fd, 10), b"old", "an open descriptor still has the old one")
    t.equal(os.fstat(fd).st_nlink, 0, "links of the old one")
    t.equal(t.names(), ["b"])


@case
def kinds_must_fit(t):
    f, d, full = t.file("f"), t.folder("d"), t.folder("full")
    t.file("full/x")
    t.fails(E.EISDIR, os.rename, f, d)
    t.fails(E.ENOTDIR, os.rename, d, f)
    t.fails((E.ENOTEMPTY, E.EEXIST), os.rename, d, full)
    t.works(os.rename, full, d)
    t.equal(t.names(d), ["x"])
    t.fails(E.ENOTDIR, os.rename, t.path("f", "x"), t.path("y"))
    t.fails(E.ENOENT, os.rename, t.path("none"), t.path("y"))
    t.fails(E.ENOENT, os.rename, f, t.path("none", "y"))


@case
def a_folder_cannot_move_into_itself(t):
    t.folder("a")
    t.folder("a/b")
    t.folder("a/b/c")
    t.fails(E.EINVAL, os.rename, t.path("a"), t.path("a", "x"))
    t.fails(E.EINVAL, os.rename, t.path("a"), t.path("a", "b", "c", "x"))
    t.fails((E.ENOTEMPTY, E.EEXIST), os.rename, t.path("a", "b", "c"), t.path("a"))
    t.fails((E.EINVAL, E.EBUSY), os.rename, t.path("a", "."), t.path("z"))
    t.fails((E.EINVAL, E.EBUSY), os.rename, t.path("a", "b", ".."), t.path("z"))


@case
def names_of_one_inode_stay_both(t):
    a = t.file("a", b"x")
    os.link(a, t.path("b"))
    os.rename(a, t.path("b"))
    t.equal(t.names(), ["a", "b"], "POSIX: nothing happens")
    t.equal(os.stat(a).st_nlink, 2)
    t.works(os.rename, a, a)


@case
def link_counts_of_folders_follow(t):
    t.folder("p")
    t.folder("q")
    t.folder("p/d")
    t.equal((os.stat(t.path("p")).st_nlink, os.stat(t.path("q")).st_nlink), (3, 2))
    os.rename(t.path("p", "d"), t.path("q", "d"))
    t.equal((os.stat(t.path("p")).st_nlink, os.stat(t.path("q")).st_nlink), (2, 3))
    t.equal(os.stat(t.path("q", "d", "..")).st_ino, os.stat(t.path("q")).st_ino, ".. follows")
    t.folder("q/e")
    os.rename(t.path("q", "d"), t.path("q", "e"))
    t.equal(os.stat(t.path("q")).st_nlink, 3, "one replaced the other")


@case
def noreplace_refuses_an_existing_name(t):
    a, b = t.file("a", b"a"), t.file("b", b"b")
    t.fails(E.EEXIST, sys_.renameat2, a, b, sys_.RENAME_NOREPLACE)
    t.fails(E.EEXIST, sys_.renameat2, a, a, sys_.RENAME_NOREPLACE)
    t.works(sys_.renameat2, a, t.path("c"), sys_.RENAME_NOREPLACE)
    t.content(b, b"b")
    t.content(t.path("c"), b"a")


@case
def exchange_swaps_two_names(t):
    a, b, d = t.file("a", b"a"), t.file("b", b"b"), t.folder("d")
    t.file("d/in")
    sys_.renameat2(a, b, sys_.RENAME_EXCHANGE)
    t.content(a, b"b")
    t.content(b, b"a")
    sys_.renameat2(a, d, sys_.RENAME_EXCHANGE)
    t.content(d, b"b")
    t.equal(t.names(a), ["in"])
    t.fails(E.ENOENT, sys_.renameat2, a, t.path("none"), sys_.RENAME_EXCHANGE)
    t.fails(E.EINVAL, sys_.renameat2, a, b, sys_.RENAME_EXCHANGE | sys_.RENAME_NOREPLACE)


@case
def exchange_between_folders_keeps_counts_and_refuses_loops(t):
    t.folder("p")
    t.folder("q")
    t.folder("p/d")
    t.file("q/f", b"f")
    sys_.renameat2(t.path("p", "d"), t.path("q", "f"), sys_.RENAME_EXCHANGE)
    t.equal((os.stat(t.path("p")).st_nlink, os.stat(t.path("q")).st_nlink), (2, 3))
    t.folder("q/f/deep")
    t.fails(E.EINVAL, sys_.renameat2, t.path("q"), t.path("q", "f", "deep"), sys_.RENAME_EXCHANGE)
    t.fails(E.EINVAL, sys_.renameat2, t.path("q", "f", "deep"), t.path("q"), sys_.RENAME_EXCHANGE)


@case
def rename_moves_the_times_it_should(t):
    t.folder("p")
    t.folder("q")
    f = t.file("p/f", b"x")
    before = {n: os.stat(t.path(n)) for n in ("p", "q", "p/f")}
    t.tick()
    os.rename(f, t.path("q", "f"))
    p, q, f = os.stat(t.path("p")), os.stat(t.path("q")), os.stat(t.path("q", "f"))
    t.true(p.st_mtime_ns > before["p"].st_mtime_ns and p.st_ctime_ns > before["p"].st_ctime_ns, "the old folder changed")
    t.true(q.st_mtime_ns > before["q"].st_mtime_ns and q.st_ctime_ns > before["q"].st_ctime_ns, "the new folder changed")
    t.equal(f.st_mtime_ns, before["p/f"].st_mtime_ns, "mtime of the file stays")
    t.true(f.st_ctime_ns > before["p/f"].st_ctime_ns, "ctime of the file moves")


@case
def symbolic_links_are_moved_not_followed(t):
    t.file("target", b"x")
    os.symlink("target", t.path("s"))
    os.rename(t.path("s"), t.path("s2"))
    t.equal(os.readlink(t.path("s2")), "target")
    os.rename(t.path("target"), t.path("s2"))
    t.content(t.path("s2"), b"x")


@case
def who_may_rename(t):
    t.folder("annas", 0o755, ANNA)
    t.file("annas/f", b"", 0o644, ANNA)
    t.fails(E.EACCES, os.rename, t.path("annas", "f"), t.path("annas", "g"), user=BEN)
    t.works(os.rename, t.path("annas", "f"), t.path("annas", "g"), user=ANNA)
    t.folder("sticky", 0o1777)
    t.file("sticky/annas", b"", 0o666, ANNA)
    t.file("sticky/bens", b"", 0o666, BEN)
    t.fails((E.EPERM, E.EACCES), os.rename, t.path("sticky", "annas"), t.path("sticky", "x"), user=BEN)
    t.fails((E.EPERM, E.EACCES), os.rename, t.path("sticky", "bens"), t.path("sticky", "annas"), user=BEN)
    t.works(os.rename, t.path("sticky", "bens"), t.path("sticky", "y"), user=BEN)
    # Moving a folder elsewhere changes its "..": one needs to write to it.
    t.folder("open", 0o777)
    t.folder("open/roots", 0o755)
    t.fails(E.EACCES, os.rename, t.path("open", "roots"), t.path("annas", "roots"), user=ANNA)


@case
def temp_and_rename_never_shows_half(t):
    path = t.path("checkpoint")
    for generation in range(20):
        data = bytes([generation]) * 200000
        t.file("checkpoint.tmp", data)
        os.rename(t.path("checkpoint.tmp"), path)
        t.equal(t.read(path), data, f"generation {generation}")
