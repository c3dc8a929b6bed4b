"""Extended attributes."""
import errno as E
import os

from suite import case
from users import ANNA, BEN


@case
def values_come_back_as_set(t):
    path = t.file("f")
    for name, value in (("user.a", b""), ("user.b", b"text"), ("user.c", bytes(range(256))), ("user.long", b"x" * 2000),
                        ("trusted.t", b"root only"), ("security.s", b"label"), ("user." + "n" * 250, b"v")):
        t.works(os.setxattr, path, name, value)
        t.equal(os.getxattr(path, name), value, name[:20])
    t.equal(len(os.listxattr(path)), 7)
    os.setxattr(path, "user.b", b"other")
    t.equal(os.getxattr(path, "user.b"), b"other")
    os.removexattr(path, "user.b")
    t.fails(E.ENODATA, os.getxattr, path, "user.b")
    t.fails(E.ENODATA, os.removexattr, path, "user.b")


@case
def create_and_replace_flags(t):
    path = t.file("f")
    t.fails(E.ENODATA, os.setxattr, path, "user.a", b"1", os.XATTR_REPLACE)
    t.works(os.setxattr, path, "user.a", b"1", os.XATTR_CREATE)
    t.fails(E.EEXIST, os.setxattr, path, "user.a", b"2", os.XATTR_CREATE)
    t.works(os.setxattr, path, "user.a", b"3", os.XATTR_REPLACE)
    t.equal(os.getxattr(path, "user.a"), b"3")


@case
def names_are_checked(t):
    path = t.file("f")
    t.fails(E.EOPNOTSUPP, os.setxattr, path, "nonsense.a", b"1")
    t.fails((E.ERANGE, E.ENAMETOOLONG), os.setxattr, path, "user." + "n" * 251, b"1")
    t.fails((E.EINVAL, E.EOPNOTSUPP), os.setxattr, path, "user.", b"1")
    t.fails(E.E2BIG, os.setxattr, path, "user.big", bytes(65537))
    t.fails(E.ENOENT, os.setxattr, t.path("none"), "user.a", b"1")


@case
def folders_and_links(t):
    d = t.folder("d")
    os.setxattr(d, "user.a", b"1")
    t.equal(os.getxattr(d, "user.a"), b"1")
    os.symlink("d", t.path("s"))
    t.equal(os.getxattr(t.path("s"), "user.a"), b"1", "through a link")
    t.fails(E.EPERM, os.setxattr, t.path("s"), "user.b", b"1", follow_symlinks=False)
    t.works(os.setxattr, t.path("s"), "trusted.b", b"1", follow_symlinks=False)
    os.mkfifo(t.path("p"))
    t.fails(E.EPERM, os.setxattr, t.path("p"), "user.b", b"1")


@case
def who_may(t):
    path = t.file("f", b"", 0o644, ANNA)
    os.setxattr(path, "trusted.t", b"secret")
    os.setxattr(path, "user.u", b"public")
    t.equal(t.works(os.getxattr, path, "user.u", user=BEN), b"public")
    t.fails(E.EACCES, os.setxattr, path, "user.x", b"", user=BEN)
    t.works(os.setxattr, path, "user.x", b"", user=ANNA)
    t.fails(E.EPERM, os.setxattr, path, "trusted.x", b"", user=ANNA)
    t.fails(E.ENODATA, os.getxattr, path, "trusted.t", user=ANNA)
    t.equal(sorted(os.listxattr(path)), ["trusted.t", "user.u", "user.x"], "root sees all names")
    t.equal(sorted(t.works(os.listxattr, path, user=ANNA)), ["user.u", "user.x"], "others do not see trusted ones")
    os.chmod(path, 0o600)
    t.fails(E.EACCES, os.getxattr, path, "user.u", user=BEN)


@case
def xattrs_move_ctime_and_stay_with_the_inode(t):
    path = t.file("f", b"x")
    before = os.stat(path)
    t.tick()
    os.setxattr(path, "user.a", b"1")
    middle = os.stat(path)
    t.true(middle.st_ctime_ns > before.st_ctime_ns, "set moves ctime")
    t.equal(middle.st_mtime_ns, before.st_mtime_ns)
    t.tick()
    os.removexattr(path, "user.a")
    t.true(os.stat(path).st_ctime_ns > middle.st_ctime_ns, "remove moves ctime")
    os.setxattr(path, "user.k", b"kept")
    os.rename(path, t.path("g"))
    os.link(t.path("g"), t.path("h"))
    t.equal(os.getxattr(t.path("h"), "user.k"), b"kept")
    t.file("f")
    t.equal(os.listxattr(path), [], "a new file has none")


@case
def hundreds_of_them(t):
    path = t.folder("d")
    for k in range(30):
        os.setxattr(path, f"user.{k:03d}", str(k).encode())
    t.equal(sorted(os.listxattr(path)), [f"user.{k:03d}" for k in range(30)])
    t.true(all(os.getxattr(path, f"user.{k:03d}") == str(k).encode() for k in range(30)), "all values")


@case
def a_capability_goes_with_a_write(t):
    path = t.file("f", b"x", 0o755)
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(path, "security.capability", capability)
    t.equal(os.getxattr(path, "security.capability"), capability)
    with open(path, "ab") as f:
        f.write(b"y")
        f.flush()
        os.fsync(f.fileno())
    t.fails(E.ENODATA, os.getxattr, path, "security.capability")
    os.setxattr(path, "security.capability", capability)
    os.chown(path, 5, 5)
    t.fails(E.ENODATA, os.getxattr, path, "security.capability")


@case
def a_capability_given_after_the_write_stays(t):
    capability = bytes.fromhex("0100000200040000000000000000000000000000")

    def store(path):
        with open(path, "rb") as f:
            os.fsync(f.fileno())

    for name, then in (("stored", store), ("linked", lambda p: os.link(p, p + "-too")),
                       ("renamed", lambda p: (os.rename(p, p + "-new"), os.rename(p + "-new", p)))):
        path = t.file(name, b"x" * 5000, 0o755)
        os.setxattr(path, "security.capability", capability)
        then(path)
        t.equal(os.getxattr(path, "security.capability"), capability, name)
