"""Operations on attributes: chmod, chown, utimens, extended attributes."""
import errno
import os

from compare import KEEP, MAY, NOW
from syscalls import AT_SYMLINK_NOFOLLOW, UTIME_NOW, UTIME_OMIT, utimensat

OWNERS = [0, 1000, 20001, 65534, 3_000_000_000]
SECONDS = [0, 1, 86400 * 365, 1_500_000_000, 2_147_483_647, 2_147_483_648, 4_294_967_295, 4_294_967_296, 8_000_000_000]
LAST_SECOND = 8_500_000_000     # in 2239; what both ext4 and 64 bits of nanoseconds can hold


class AttributeOperations:
    WEIGHTS = {"change_mode": 5, "change_owner": 4, "set_times": 5, "set_xattr": 6, "remove_xattr": 3}

    def change_mode(self):
        inode = self.some_named(lambda i: not i.is_link)
        if inode is None:
            return
        # No sticky directories: in those protected_regular refuses O_CREAT of what is there, even to root.
        mode = self.rng.randrange(0o10000) & (~0o1000 if inode.is_directory else ~0)
        self.say(f"chmod {self.brief(inode)} {mode:o}")
        self.call(os.chmod, self.any_path(inode), mode)
        inode.mode = mode
        self.touch(inode, ctime=NOW)

    def change_owner(self):
        inode = self.some_named()
        if inode is None:
            return
        uid, gid = self.rng.choice(OWNERS), self.rng.choice(OWNERS)
        self.say(f"chown {self.brief(inode)} {uid}:{gid}")
        self.call(os.lchown, self.any_path(inode), uid, gid)
        self.model.chown(inode, uid, gid)
        self.touch(inode, ctime=NOW)

    def _some_time(self):
        kind = self.rng.randrange(10)
        if kind == 0:
            return 0, UTIME_NOW
        if kind == 1:
            return 0, UTIME_OMIT
        seconds = self.rng.choice(SECONDS) if kind < 5 else self.rng.randrange(LAST_SECOND)
        return seconds, self.rng.choice([0, 1, 999_999_999, self.rng.randrange(10 ** 9)])

    def set_times(self):
        inode = self.some_named()
        if inode is None:
            return
        times = {"atime": self._some_time(), "mtime": self._some_time()}
        self.say(f"utimens {self.brief(inode)} {times}")
        self.call(utimensat, self.any_path(inode), times["atime"], times["mtime"], AT_SYMLINK_NOFOLLOW)
        policy = {}
        for field, (seconds, nanoseconds) in times.items():
            policy[field] = NOW if nanoseconds == UTIME_NOW else KEEP
            if nanoseconds not in (UTIME_NOW, UTIME_OMIT):
                inode.times[field] = seconds * 10 ** 9 + nanoseconds
        both_omitted = all(t[1] == UTIME_OMIT for t in times.values())
        self.touch(inode, ctime=MAY if both_omitted else NOW, **policy)

    def _some_xattr(self, inode):
        space = "trusted" if inode.is_link or not (inode.is_file or inode.is_directory) or self.chance(0.2) else "user"
        return f"{space}.{self.rng.choice(['one', 'two', 'three', 'x' * 100])}"

    def set_xattr(self):
        inode = self.some_named()
        if inode is None:
            return
        name = self._some_xattr(inode)
        length = self.rng.choice([0, 1, 20, self.target.xattr_max if self.chance(0.1) else 60])
        value = self.rng.randbytes(length)
        flags = self.rng.choice([0, 0, 0, os.XATTR_CREATE, os.XATTR_REPLACE])
        self.say(f"setxattr {self.brief(inode)} {name[:20]} {length} bytes{['', ' CREATE', ' REPLACE'][flags]}")
        want = 0
        if flags == os.XATTR_CREATE and name in inode.xattrs:
            want = errno.EEXIST
        elif flags == os.XATTR_REPLACE and name not in inode.xattrs:
            want = errno.ENODATA
        self.expect(want, os.setxattr, self.any_path(inode), name, value, flags, follow_symlinks=False)
        if not want:
            self.touch(inode, ctime=MAY if inode.xattrs.get(name) == value else NOW)
            inode.xattrs[name] = value

    def remove_xattr(self):
        inode = self.some_named(lambda i: i.xattrs or self.chance(0.1))
        if inode is None:
            return
        name = self.rng.choice(sorted(inode.xattrs)) if inode.xattrs and self.chance(0.9) else self._some_xattr(inode)
        self.say(f"removexattr {self.brief(inode)} {name[:20]}")
        want = 0 if name in inode.xattrs else errno.ENODATA
        self.expect(want, os.removexattr, self.any_path(inode), name, follow_symlinks=False)
        if not want:
            del inode.xattrs[name]
            self.touch(inode, ctime=NOW)
