"""POSIX ACLs, through the system.posix_acl_* attributes."""
import errno as E
import os
import struct

from suite import case
from users import ANNA, BEN, TEAM

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, who) for tag, bits, who in entries)


def entries(raw):
    return [struct.unpack_from("<HHI", raw, at) for at in range(4, len(raw), 8)]


def minimal(owner, group, other):
    return acl((USER_OBJ, owner, NOBODY), (GROUP_OBJ, group, NOBODY), (OTHER, other, NOBODY))


def named(user, bits, owner=6, group=4, mask=7, other=0):
    return acl((USER_OBJ, owner, NOBODY), (USER, bits, user), (GROUP_OBJ, group, NOBODY), (MASK, mask, NOBODY), (OTHER, other, NOBODY))


def opens(path, flags):
    os.close(os.open(path, flags))


@case
def a_named_user_gets_what_the_entry_says(t):
    path = t.file("f", b"x", 0o600)
    t.fails(E.EACCES, opens, path, os.O_RDONLY, user=ANNA)
    os.setxattr(path, ACCESS, named(ANNA.uid, 4))
    t.works(opens, path, os.O_RDONLY, user=ANNA)
    t.fails(E.EACCES, opens, path, os.O_WRONLY, user=ANNA)
    t.fails(E.EACCES, opens, path, os.O_RDONLY, user=BEN)
    os.setxattr(path, ACCESS, named(ANNA.uid, 6))
    t.works(opens, path, os.O_RDWR, user=ANNA)


@case
def the_mask_limits_and_shows_as_group_bits(t):
    path = t.file("f", b"x", 0o600)
    os.setxattr(path, ACCESS, named(ANNA.uid, 6, mask=4))
    t.mode(path, 0o640)
    t.works(opens, path, os.O_RDONLY, user=ANNA)
    t.fails(E.EACCES, opens, path, os.O_RDWR, user=ANNA)
    os.chmod(path, 0o660)
    t.equal(dict((tag, bits) for tag, bits, _ in entries(os.getxattr(path, ACCESS)))[MASK], 6, "chmod sets the mask")
    t.works(opens, path, os.O_RDWR, user=ANNA)
    os.chmod(path, 0o600)
    t.fails(E.EACCES, opens, path, os.O_RDONLY, user=ANNA)


@case
def a_named_group_counts(t):
    path = t.file("f", b"x", 0o600)
    os.setxattr(path, ACCESS, acl((USER_OBJ, 6, NOBODY), (GROUP_OBJ, 0, NOBODY), (GROUP, 4, TEAM), (MASK, 4, NOBODY), (OTHER, 0, NOBODY)))
    t.fails(E.EACCES, opens, path, os.O_RDONLY, user=BEN)
    t.works(opens, path, os.O_RDONLY, user=BEN.also_in(TEAM))


@case
def a_minimal_acl_is_the_mode(t):
    path = t.file("f", b"x", 0o644)
    os.setxattr(path, ACCESS, minimal(7, 5, 1))
    t.mode(path, 0o751)
    t.fails(E.ENODATA, os.getxattr, path, ACCESS)


@case
def default_acls_are_inherited(t):
    d = t.folder("d", 0o777)
    os.setxattr(d, DEFAULT, named(ANNA.uid, 7, owner=7, group=5, mask=7, other=0))
    os.umask(0o077)
    os.close(os.open(t.path("d", "f"), os.O_CREAT | os.O_WRONLY, 0o666))
    os.mkdir(t.path("d", "sub"), 0o777)
    os.umask(0o022)
    t.mode(t.path("d", "f"), 0o660, "the umask does not count, the default ACL does")
    t.works(opens, t.path("d", "f"), os.O_RDWR, user=ANNA)
    t.fails(E.EACCES, opens, t.path("d", "f"), os.O_RDONLY, user=BEN)
    t.equal(os.getxattr(t.path("d", "sub"), DEFAULT), os.getxattr(d, DEFAULT), "a subfolder inherits it as default")
    t.mode(t.path("d", "sub"), 0o770)
    t.fails(E.ENODATA, os.getxattr, t.path("d", "f"), DEFAULT)
    os.symlink("x", t.path("d", "s"))
    t.fails((E.ENODATA, E.EOPNOTSUPP), os.getxattr, t.path("d", "s"), ACCESS, follow_symlinks=False)


@case
def nonsense_is_refused(t):
    path, d = t.file("f"), t.folder("d")
    t.fails((E.EINVAL, E.EOPNOTSUPP), os.setxattr, path, ACCESS, b"garbage")
    t.fails(E.EINVAL, os.setxattr, path, ACCESS, acl((USER_OBJ, 6, NOBODY)))
    t.fails(E.EINVAL, os.setxattr, path, ACCESS, acl((USER_OBJ, 6, NOBODY), (USER, 6, 5), (GROUP_OBJ, 4, NOBODY), (OTHER, 0, NOBODY)))
    t.fails(E.EACCES, os.setxattr, path, DEFAULT, minimal(7, 5, 5))
    t.works(os.setxattr, d, DEFAULT, minimal(7, 5, 5))
    t.works(os.removexattr, d, DEFAULT)
    t.fails(E.EPERM, os.setxattr, path, ACCESS, minimal(7, 5, 5), user=ANNA)


@case
def removing_an_acl_keeps_the_mode(t):
    path = t.file("f", b"x", 0o600)
    os.setxattr(path, ACCESS, named(ANNA.uid, 7, mask=7))
    t.works(os.removexattr, path, ACCESS)
    t.fails(E.EACCES, opens, path, os.O_WRONLY, user=ANNA)


@case
def acls_survive_rename_and_link(t):
    path = t.file("f", b"x", 0o600)
    os.setxattr(path, ACCESS, named(ANNA.uid, 6))
    os.rename(path, t.path("g"))
    os.link(t.path("g"), t.path("h"))
    t.works(opens, t.path("h"), os.O_RDWR, user=ANNA)
