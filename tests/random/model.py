"""The name space in memory, and what Linux says about every change of it.

Each verb returns 0 or an errno and changes the model only if it returns 0.  It knows nothing about
a mount: the players do the same to a real one and compare."""
import errno
import stat

from content import Content
from syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT

ROOT_UID = 0


class Inode:
    """times: the last known atime, mtime and ctime in ns; None until they were first seen."""

    def __init__(self, number, kind, mode, gid=0):
        self.number, self.kind, self.mode, self.uid, self.gid = number, kind, mode, ROOT_UID, gid
        self.xattrs = {}
        self.content = Content() if kind == stat.S_IFREG else None
        self.children = {} if kind == stat.S_IFDIR else None
        self.target = None
        self.device = 0
        self.parent = None             # of a directory that has a name
        self.names = []                # (directory, name) it is known by
        self.times = {"atime": None, "mtime": None, "ctime": None}
        self.seen_as = None            # the inode number the file system gave it
        self.unsettled = False         # pages written through a mapping and not synced: they may still move its times

    is_file = property(lambda self: self.kind == stat.S_IFREG)
    is_directory = property(lambda self: self.kind == stat.S_IFDIR)
    is_link = property(lambda self: self.kind == stat.S_IFLNK)

    def links(self):
        if self.is_directory:
            return 2 + sum(1 for child in self.children.values() if child.is_directory) if self.names or self.number == 0 else 0
        return len(self.names)

    def above(self, other):
        """Whether it is `other` or one of the directories over it."""
        while other is not None:
            if other is self:
                return True
            other = other.parent
        return False

    def __repr__(self):
        return f"<{self.number} {path_of(self) or 'nameless'}>"


def path_of(inode, name_index=0):
    """The path below the root of the model; '' is the root, None if it has no name left."""
    if not inode.names:
        return "" if inode.parent is None and inode.number == 0 else None
    directory, name = inode.names[name_index % len(inode.names)]
    above = path_of(directory)
    return f"{above}/{name}" if above else name


class Model:
    def __init__(self):
        self.made = 0
        self.root = self._inode(stat.S_IFDIR, 0o755)
        self.alive = [self.root]

    def _inode(self, kind, mode, gid=0):
        inode = Inode(self.made, kind, mode, gid)
        self.made += 1
        return inode

    def files(self):
        return [i for i in self.alive if i.is_file]

    def directories(self):
        return [i for i in self.alive if i.is_directory]

    def _enter(self, directory, name, inode):
        directory.children[name] = inode
        inode.names.append((directory, name))
        if inode.is_directory:
            inode.parent = directory

    def _leave(self, directory, name):
        inode = directory.children.pop(name)
        inode.names.remove((directory, name))
        return inode

    def _gone(self, inode):
        if not inode.names:
            self.alive.remove(inode)
            inode.parent = None

    def create(self, directory, name, kind, mode, target=None, device=0):
        """A new thing.  (errno, inode)"""
        if name in directory.children:
            return errno.EEXIST, None
        inode = self._inode(kind, mode)
        if directory.mode & stat.S_ISGID:
            inode.gid = directory.gid
            if kind == stat.S_IFDIR:
                inode.mode |= stat.S_ISGID
        inode.target, inode.device = target, device
        self._enter(directory, name, inode)
        self.alive.append(inode)
        return 0, inode

    def link(self, inode, directory, name):
        if name in directory.children:
            return errno.EEXIST
        if inode.is_directory:
            return errno.EPERM
        self._enter(directory, name, inode)
        return 0

    def unlink(self, directory, name):
        inode = directory.children.get(name)
        if inode is None:
            return errno.ENOENT
        if inode.is_directory:
            return errno.EISDIR
        self._leave(directory, name)
        self._gone(inode)
        return 0

    def rmdir(self, directory, name):
        inode = directory.children.get(name)
        if inode is None:
            return errno.ENOENT
        if not inode.is_directory:
            return errno.ENOTDIR
        if inode.children:
            return errno.ENOTEMPTY
        self._leave(directory, name)
        self._gone(inode)
        return 0

    def rename(self, old_dir, old, new_dir, new, flags):
        """(errno, inodes whose names changed, apart from the two directories); in the order in which Linux checks."""
        if flags & RENAME_NOREPLACE and flags & RENAME_EXCHANGE:
            return errno.EINVAL, []
        moved, other = old_dir.children.get(old), new_dir.children.get(new)
        problem = self._may_rename(old_dir, moved, new_dir, other, flags)
        if problem or moved is other:
            return problem, []
        if flags & RENAME_WHITEOUT:
            return errno.EINVAL, []         # EpochFS has no whiteouts
        if other is not None and other.is_directory and other.children and not flags & RENAME_EXCHANGE:
            return errno.ENOTEMPTY, []
        self._leave(old_dir, old)
        if other is not None:
            self._leave(new_dir, new)
        self._enter(new_dir, new, moved)
        if flags & RENAME_EXCHANGE:
            self._enter(old_dir, old, other)
        elif other is not None:
            self._gone(other)
        return 0, [moved] + ([other] if other is not None else [])

    @staticmethod
    def _may_rename(old_dir, moved, new_dir, other, flags):
        """What the kernel checks before it asks the file system."""
        if moved is None:
            return errno.ENOENT
        if flags & RENAME_NOREPLACE and other is not None:
            return errno.EEXIST
        if flags & RENAME_EXCHANGE and other is None:
            return errno.ENOENT
        if moved.is_directory and moved.above(new_dir):
            return errno.EINVAL
        if other is not None and other.is_directory and other.above(old_dir):
            return errno.EINVAL if flags & RENAME_EXCHANGE else errno.ENOTEMPTY
        if other is None or moved is other or flags & RENAME_EXCHANGE:
            return 0
        if moved.is_directory and not other.is_directory:
            return errno.ENOTDIR
        if other.is_directory and not moved.is_directory:
            return errno.EISDIR
        return 0

    @staticmethod
    def chown(inode, uid, gid):
        inode.uid, inode.gid = uid, gid
        if not inode.is_directory and not inode.is_link:
            inode.mode &= ~stat.S_ISUID
            if inode.mode & stat.S_IXGRP:
                inode.mode &= ~stat.S_ISGID
