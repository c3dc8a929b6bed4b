"""Operations on what files hold: write, append, truncate, fallocate, mmap, copy, read, seek, fsync, open and close."""
import contextlib
import errno
import mmap
import os

import compare
from compare import MAY, NOW, PAGE
from syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, copy_file_range, fallocate, ftruncate, truncate

FAR = 8 << 40               # offsets of sparse files go up to here
FAR_CHANCE = 0.01
LARGE = 1 << 20             # larger files are cached, and passed through, one by one


class ContentOperations:
    WEIGHTS = {"write": 22, "append": 6, "burst": 6, "cut": 8, "allocate": 8, "map_write": 5, "copy_range": 6, "read": 4, "seek_holes": 3,
               "sync_file": 5, "open_file": 4, "open_reading": 6, "close_file": 5}

    # -- choices

    def _some_length(self):
        kind = self.rng.randrange(10)
        if kind < 3:
            length = self.rng.randrange(1, 200)
        elif kind < 7:
            length = self.rng.randrange(1, 20000)
        elif kind < 8:
            length = PAGE * self.rng.randrange(1, 9)
        elif kind < 9:
            length = self.rng.randrange(1, 300000)
        else:
            length = self.block * self.rng.randrange(1, 3) + self.rng.randrange(-2, 3)
        return max(1, min(length, self.dense_max))

    def _some_offset(self, size, length):
        """Mostly inside, at the end, on the edge of a block, or a bit behind; seldom very far away."""
        kind = self.rng.randrange(10)
        if self.chance(FAR_CHANCE):
            return self.rng.randrange(FAR)
        if size > self.dense_max:
            return max(0, size - self.rng.randrange(3 * length + 1))
        if kind < 4:
            offset = self.rng.randrange(size + 1)
        elif kind < 6:
            offset = size
        elif kind < 8:
            offset = self.block * self.rng.randrange(1 + self.dense_max // self.block) + self.rng.randrange(-3, 4)
        else:
            offset = size + self.rng.randrange(2 * self.block)
        return max(0, min(offset, self.dense_max - length))

    def _some_data(self, length):
        kind = self.rng.randrange(10)
        if kind < 1:
            return bytes(length)
        if kind < 5:
            return self.rng.randbytes(length)
        text = b"[operation %d]" % self.number
        return (text * (length // len(text) + 1))[:length]

    @contextlib.contextmanager
    def _some_file(self, flags=os.O_RDWR, append=False):
        """(inode, descriptor): a file that is held open, or one opened by its name.  (None, None) if there is none."""
        held = [h for h in self.handles if (flags == os.O_RDONLY if h.reads else h.append == append)]
        if held and self.chance(0.4):
            handle = self.rng.choice(held)
            if len(self.target.roots) > 1:
                self.say(f"    a file held open on {self.place_of(handle.fd)}:")
            yield handle.inode, handle.fd
            return
        inode = self.some_named(lambda i: i.is_file)
        if inode is None:
            yield None, None
            return
        fd = self.call(os.open, self.any_path(inode), flags | (os.O_APPEND if append else 0))
        try:
            yield inode, fd
        finally:
            os.close(fd)

    # -- operations

    def _pwrite(self, fd, inode, offset, data):
        view, at = memoryview(data), offset
        while view:
            done = os.pwrite(fd, view, at)
            view, at = view[done:], at + done
        inode.content.write(offset, data)

    def write(self):
        flags = os.O_RDWR | self.rng.choice([0, 0, 0, 0, os.O_SYNC, os.O_DSYNC])
        with self._some_file(flags) as (inode, fd):
            if inode is None:
                return
            if self.chance(0.1):
                self._write_direct(inode, fd)
                return
            length = self._some_length()
            offset = self._some_offset(inode.content.size, length)
            self.say(f"write {self.brief(inode)} {length} at {offset}{' SYNC' if flags & os.O_DSYNC else ''}")
            self._pwrite(fd, inode, offset, self._some_data(length))
            self.changed(inode)

    def _write_direct(self, inode, fd):
        """O_DIRECT: memory, offset and length in pages."""
        length = PAGE * self.rng.randrange(1, 40)
        offset = self._some_offset(inode.content.size, length) // PAGE * PAGE
        data = self._some_data(length)
        self.say(f"write {self.brief(inode)} {length} at {offset} DIRECT")
        direct = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, length) as memory:
                memory[:] = data
                done = os.pwritev(direct, [memory], offset)
        finally:
            os.close(direct)
        if done != length:
            raise compare.Differs(f"a direct write of {length} wrote {done}")
        inode.content.write(offset, data)
        self.changed(inode)

    def append(self):
        with self._some_file(append=True) as (inode, fd):
            if inode is None:
                return
            data = self._some_data(self._some_length())
            if inode.content.size + len(data) > self.dense_max * 2 and inode.content.size < self.dense_max * 4:
                return
            self.say(f"append {self.brief(inode)} {len(data)} at {inode.content.size}")
            at = inode.content.size
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view):]
            inode.content.write(at, data)
            self.changed(inode)

    def burst(self):
        """Many small changes of one file before anybody looks."""
        with self._some_file() as (inode, fd):
            if inode is None:
                return
            count, sequential = self.rng.randrange(3, 30), self.chance(0.4)
            at = self._some_offset(inode.content.size, 1)
            self.say(f"burst {self.brief(inode)} {count} {'in sequence' if sequential else 'anywhere'} from {at}")
            for _ in range(count):
                data = self._some_data(self.rng.randrange(1, 9000))
                offset = at if sequential else self._some_offset(inode.content.size, len(data))
                self._pwrite(fd, inode, offset, data)
                at += len(data)
                if self.chance(0.1):
                    size = self.rng.randrange(min(inode.content.size, self.dense_max) + 1)
                    ftruncate(fd, size)
                    inode.content.truncate(size)
            self.changed(inode)

    def cut(self):
        """truncate, both ways and to where it is."""
        with self._some_file() as (inode, fd):
            if inode is None:
                return
            size = inode.content.size
            new = self.rng.choice([0, size, self.rng.randrange(size + 1), self._some_offset(size, 0), self._some_offset(size, 0)])
            by_name = bool(inode.names) and self.chance(0.5)
            self.say(f"truncate {self.brief(inode)} from {size} to {new}{' by name' if by_name else ''}")
            if by_name:
                self.call(truncate, self.any_path(inode), new)
            else:
                ftruncate(fd, new)
            inode.content.truncate(new)
            self.touch(inode, mtime=NOW if new != size else MAY, ctime=NOW if new != size else MAY)

    def allocate(self):
        with self._some_file() as (inode, fd):
            if inode is None:
                return
            mode = self.rng.choice([0, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE,
                                    FALLOC_ZERO_RANGE, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE])
            length = self._some_length()
            offset = self._some_offset(inode.content.size, length)
            self.say(f"fallocate {self.brief(inode)} mode {mode:#x} {length} at {offset}")
            fallocate(fd, mode, offset, length)
            if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
                inode.content.zero(offset, length)
            if not mode & FALLOC_KEEP_SIZE:
                inode.content.extend(offset + length)
            self.touch(inode, mtime=MAY, ctime=MAY)

    def map_write(self):
        """Through shared memory; other ways to read must see it at once."""
        with self._some_file() as (inode, fd):
            if inode is None or not inode.content.size or inode.content.size > compare.DENSE:
                return
            size = inode.content.size
            offset = self.rng.randrange(size)
            length = min(self._some_length(), size - offset)
            data, check = self._some_data(length), self.chance(0.5)
            sync = self.rng.choice(["msync", "fsync", "no sync"])
            self.say(f"mmap {self.brief(inode)} {length} at {offset} {sync}")
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            with mmap.mmap(fd, offset - start + length, offset=start) as memory:
                memory[offset - start:] = data
                inode.content.write(offset, data)
                if check:
                    compare.check_range(self.brief(inode), fd, inode.content, offset, length, self.eyes, compare.read_plain)
                if sync == "msync":
                    memory.flush()
            if sync == "fsync":
                os.fsync(fd)
                inode.unsettled = False
            elif sync == "no sync":
                inode.unsettled = True
            self.changed(inode)

    def copy_range(self):
        with self._some_file(os.O_RDONLY) as (source, source_fd), self._some_file() as (goal, goal_fd):
            if source is None or goal is None:
                return
            length = self._some_length()
            start = min(self._some_offset(source.content.size, length), source.content.size)
            offset = self._some_offset(goal.content.size, length)
            self.say(f"copy_file_range {self.brief(source)} {length} at {start} to {self.brief(goal)} at {offset}")
            if source is goal and start < offset + length and offset < start + length:
                # The kernel does not know that it is one file if it is opened on two mounts.
                if start + length <= source.content.size and os.fstat(source_fd).st_dev == os.fstat(goal_fd).st_dev:
                    self.expect(errno.EINVAL, copy_file_range, source_fd, start, goal_fd, offset, length)
                return
            if len(self.target.roots) > 1 or any(h.fd == source_fd and h.reads for h in self.handles):
                os.fstat(source_fd)         # as cp does: the kernel copies as far as it knows the file, without asking again
            data = source.content.read(start, length)
            done = 0
            while done < len(data):
                copied = copy_file_range(source_fd, start + done, goal_fd, offset + done, length - done)
                if not copied:
                    raise compare.Differs(f"copy_file_range copies only {done} of {len(data)}")
                done += copied
            goal.content.write(offset, data)
            if data:
                self.changed(goal)
            self.touch(source)

    def read(self):
        with self._some_file(os.O_RDONLY) as (inode, fd):
            if inode is None:
                return
            length = self._some_length()
            offset = self._some_offset(inode.content.size, length)
            self.say(f"read {self.brief(inode)} {length} at {offset}")
            if offset < inode.content.size:
                compare.check_range(self.brief(inode), fd, inode.content, offset, length, self.eyes, self.eyes.choice(compare.READERS))
            elif os.pread(fd, length, offset):
                raise compare.Differs(f"{self.brief(inode)}: something to read at {offset}, behind the end at {inode.content.size}")

    def seek_holes(self):
        with self._some_file(os.O_RDONLY) as (inode, fd):
            if inode is not None and not inode.unsettled:       # the kernel does not look for pages of its own
                self.say(f"SEEK_DATA {self.brief(inode)}")
                compare.check_holes(self.brief(inode), fd, inode.content)

    def sync_file(self):
        with self._some_file() as (inode, fd):
            if inode is None:
                return
            call = self.rng.choice([os.fsync, os.fdatasync])
            self.say(f"{call.__name__} {self.brief(inode)}")
            call(fd)
            self._settled(inode)

    def _settled(self, inode):
        """It was synced, whatever was stored through a mapping before."""
        if inode.unsettled:
            inode.unsettled = False
            inode.times["mtime"] = inode.times["ctime"] = None
        self.touch(inode)

    def open_file(self):
        inode = self.some_named(lambda i: i.is_file)
        if inode is None:
            return
        append, cut = self.chance(0.3), self.chance(0.1)
        self.say(f"open {self.brief(inode)}{' APPEND' if append else ''}{' TRUNC' if cut else ''}")
        flags = os.O_RDWR | (os.O_APPEND if append else 0) | (os.O_TRUNC if cut else 0)
        self.hold(self.call(os.open, self.any_path(inode), flags), inode, append)
        if cut:
            inode.content.truncate(0)
            self.touch(inode, mtime=MAY, ctime=MAY)

    def open_reading(self):
        """For reading only, a file that is stored and was read whole: the kernel may read it by itself from a cache on the disk from then on,
        and must show what is written meanwhile."""
        written = {h.inode for h in self.handles if not h.reads}
        inode = self.some_named(lambda i: i.is_file and i not in written and i.content.size <= compare.DENSE
                                and (i.content.size > LARGE or self.chance(0.2)))
        if inode is None:
            return
        path = self.any_path(inode)
        self.say(f"open {self.brief(inode)} RDONLY")
        for _ in range(2):
            fd = self.call(os.open, path, os.O_RDONLY)
            try:
                os.fsync(fd)
                compare.check_content(self.brief(inode), fd, inode.content, self.eyes, compare.read_forgotten)
            finally:
                os.close(fd)
        self.hold(self.call(os.open, path, os.O_RDONLY), inode, reads=True)
        self._settled(inode)

    def close_file(self):
        if self.handles:
            handle = self.rng.choice(self.handles)
            self.say(f"close {self.brief(handle.inode)}")
            self.let_go(handle)
            self.touch(handle.inode)
