"""Operations on names: create, mkdir, link, symlink, mknod, unlink, rmdir, rename."""
import errno
import os
import stat

from compare import MAY, NOW
from syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, mknod, renameat2

FLAG_NAMES = {0: "", RENAME_NOREPLACE: " NOREPLACE", RENAME_EXCHANGE: " EXCHANGE", RENAME_WHITEOUT: " WHITEOUT",
              RENAME_NOREPLACE | RENAME_EXCHANGE: " NOREPLACE|EXCHANGE"}
DEPTH_MAX = 8


class NameOperations:
    WEIGHTS = {"create": 10, "make_directory": 5, "make_symlink": 2, "make_node": 1, "make_link": 4, "unlink": 5, "rmdir": 3,
               "rename": 10, "open_missing": 1}

    def _umask(self):
        mask = self.rng.choice([0, 0o022, 0o077])
        os.umask(mask)
        return mask

    def _new(self, directory, inode):
        """What was made: its times are the operation's, and the directory's too."""
        self.changed(directory)
        self.touch(inode, atime=NOW, mtime=NOW, ctime=NOW)

    def create(self):
        directory = self.some_directory()
        name = self.some_entry(directory, 0.2)
        mode, mask = self.rng.choice([0o644, 0o600, 0o755, 0o666, 0o4755, 0o2770, 0o000]), self._umask()
        exclusive, truncate = self.chance(0.4), self.chance(0.3)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_EXCL if exclusive else 0) | (os.O_TRUNC if truncate else 0)
        there = directory.children.get(name)
        self.say(f"create {self.brief(directory)}/{name[:20]} mode {mode & ~mask:o}{' EXCL' if exclusive else ''}{' TRUNC' if truncate else ''}")
        if there is None:
            want = 0
        elif exclusive:
            want = errno.EEXIST
        elif there.is_directory:
            want = errno.EISDIR
        elif there.is_link:
            want = errno.ELOOP
        elif not there.is_file:
            return          # a fifo would wait for its other end
        else:
            want = 0
        fd = self.expect(want, os.open, self.entry(directory, name), flags, mode)
        if want:
            return
        if there is None:
            _, there = self.model.create(directory, name, stat.S_IFREG, mode & ~mask)
            self._new(directory, there)
        elif truncate:
            there.content.truncate(0)
            self.touch(there, mtime=MAY, ctime=MAY)
        self._close_or_hold(fd, there)

    def _close_or_hold(self, fd, inode):
        if self.chance(0.3):
            self.hold(fd, inode)
        else:
            os.close(fd)

    def make_directory(self):
        directory = self.some_directory()
        if self._depth(directory) >= DEPTH_MAX:
            return
        name, mode, mask = self.some_entry(directory, 0.1), self.rng.choice([0o755, 0o700, 0o777, 0o2755]), self._umask()
        self.say(f"mkdir {self.brief(directory)}/{name[:20]} mode {mode & ~mask:o}")
        want, inode = self.model.create(directory, name, stat.S_IFDIR, mode & ~mask & 0o777)
        self.expect(want, os.mkdir, self.entry(directory, name), mode)
        if inode:
            self._new(directory, inode)

    @staticmethod
    def _depth(directory):
        depth = 0
        while directory.parent is not None:
            directory, depth = directory.parent, depth + 1
        return depth

    def make_symlink(self):
        directory = self.some_directory()
        name = self.some_entry(directory, 0.1)
        target = self.rng.choice(["a", "../b", "/nowhere/at/all", "t" * 1000, "\u00fc/" * 100])
        self.say(f"symlink {self.brief(directory)}/{name[:20]} to {target[:20]}")
        want, inode = self.model.create(directory, name, stat.S_IFLNK, 0o777, target=target)
        self.expect(want, os.symlink, target, self.entry(directory, name))
        if inode:
            self._new(directory, inode)

    def make_node(self):
        directory = self.some_directory()
        name, mask = self.some_entry(directory, 0.1), self._umask()
        kind, device = self.rng.choice([(stat.S_IFIFO, 0), (stat.S_IFCHR, os.makedev(1, 3)), (stat.S_IFBLK, os.makedev(253, 70000)),
                                        (stat.S_IFSOCK, 0), (stat.S_IFREG, 0)])
        self.say(f"mknod {self.brief(directory)}/{name[:20]} {kind:o}")
        want, inode = self.model.create(directory, name, kind, 0o664 & ~mask, device=device)
        self.expect(want, mknod, self.entry(directory, name), kind | 0o664, device)
        if inode:
            self._new(directory, inode)

    def make_link(self):
        source = self.some_named()
        if source is None:
            return
        directory = self.some_directory()
        name = self.some_entry(directory, 0.1)
        old = self.any_path(source)
        self.say(f"link {self.brief(source)} as {self.brief(directory)}/{name[:20]}")
        want = self.model.link(source, directory, name)
        self.expect(want, os.link, old, self.entry(directory, name), follow_symlinks=False)
        if not want:
            self.changed(directory)
            self.touch(source, ctime=NOW)

    def unlink(self):
        directory = self.some_directory()
        name = self.some_entry(directory, 0.95)
        inode = directory.children.get(name)
        self.say(f"unlink {self.brief(directory)}/{name[:20]}")
        path = self.entry(directory, name)
        if inode is not None and inode.is_file and self.chance(0.25):
            self.say("    ... which stays open")
            self.hold(self.call(os.open, path, os.O_RDWR), inode)
        want = self.model.unlink(directory, name)
        self.expect(want, os.unlink, path)
        if not want:
            self.changed(directory)
            self.touch(inode, ctime=NOW)

    def rmdir(self):
        inode = self.some_named(lambda i: i.is_directory and (not i.children or self.chance(0.2)))
        if inode is None or self.chance(0.1):
            directory = self.some_directory()
            name = self.some_entry(directory)
        else:
            directory, name = inode.names[0]
        self.say(f"rmdir {self.brief(directory)}/{name[:20]}")
        path = self.entry(directory, name)
        want = self.model.rmdir(directory, name)
        self.expect(want, os.rmdir, path)
        if not want:
            self.changed(directory)

    def rename(self):
        moved = self.some_named()
        if moved is None:
            return
        old_dir, old = self.rng.choice(moved.names)
        if self.chance(0.03):
            old = self.rng.choice(["missing", "n" * 254])
        new_dir = old_dir if self.chance(0.3) else self.some_directory()
        new = self.some_entry(new_dir, 0.5)
        flags = self.rng.choices([0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_WHITEOUT],
                                 [10, 3, 5, 0.3, 0.3 if self.target.epochfs else 0])[0]
        if self._depth(new_dir) >= DEPTH_MAX:
            return
        self.say(f"rename{FLAG_NAMES[flags]} {self.brief(old_dir)}/{old[:20]} to {self.brief(new_dir)}/{new[:20]}")
        source, goal = self.entry(old_dir, old), self.entry(new_dir, new)
        replaced = new_dir.children.get(new)
        if replaced is not None and replaced.is_file and self.chance(0.2):
            self.hold(self.call(os.open, goal, os.O_RDWR), replaced)
        if len(self.target.roots) > 1:
            # The kernel takes notice that another mount has moved a directory when it looks it up, but not within a rename.
            for path, inode in (source, old_dir.children.get(old)), (goal, replaced):
                if inode is not None and inode.is_directory:
                    self.call(os.lstat, path)
        want, inodes = self.model.rename(old_dir, old, new_dir, new, flags)
        self.expect(want, renameat2, source, goal, flags)
        if inodes:
            self.changed(old_dir, new_dir)
        for inode in inodes:
            self.touch(inode, ctime=MAY)
            if inode.is_directory:
                self.movers[inode].add(self.target.root)

    def open_missing(self):
        directory = self.some_directory()
        name = self.some_entry(directory, 0)
        if name not in directory.children:
            self.say(f"open {self.brief(directory)}/{name[:20]}, which is not there")
            self.expect(errno.ENOENT, os.open, self.entry(directory, name), os.O_RDONLY)
