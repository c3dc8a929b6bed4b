"""The load: processes that write, each in a folder of its own, and note what they were told.

A writer takes random steps until it is stopped.  Any error ends it and is reported, unless the mount was
killed, when it may see what a dead mount says."""
import errno
import json
import mmap
import os
import random

import state
import units

DEAD_MOUNT = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.ENODEV, errno.EIO)


class Writer:
    """Steps are taken through `step`, which notes them.  Subclasses choose them in `turn`."""

    def __init__(self, number, folder, notes, seed):
        self.number, self.folder, self.notes_path, self.seed = number, folder, notes, seed
        self.name = f"{type(self).__name__.lower()}-{number}"
        self.state = state.State()
        self.state.next_file = number * 10 ** 9 + 1
        self.fds = {}

    def prepare(self):
        """Before the first crash."""

    def begin(self, turn):
        """In the new process.  What was open before is gone."""
        self.rng = random.Random(f"{self.seed} {self.name} {turn}")
        self.notes = os.open(self.notes_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self.fds = {}

    def check(self, exact):
        self.state = state.check(self.folder, self.notes_path, self.state, exact)
        os.truncate(self.notes_path, 0)

    def path(self, name):
        return os.path.join(self.folder, name)

    def note(self, what):
        os.write(self.notes, json.dumps(what).encode() + b"\n")

    def step(self, *step):
        """Notes it, takes it, notes that it was acknowledged."""
        self.note(step)
        getattr(self, f"take_{step[0]}")(*step[1:])
        self.note(None)
        self.state.apply(step)

    # -- taking steps

    def take_create(self, name, file):
        self.fds[name] = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def open_again(self, name):
        if name not in self.fds:
            self.fds[name] = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)

    def close(self, name):
        if name in self.fds:
            os.close(self.fds.pop(name))

    def take_write(self, name, length):
        node = self.state.nodes[name]
        data = units.stream(node.file, node.written, length)
        done = os.write(self.fds[name], data)
        if done != length:
            raise OSError(errno.EIO, f"write wrote {done} of {length}")

    def take_fsync(self, name):
        os.fsync(self.fds[name])

    def take_fsync_all(self):
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def take_mkdir(self, name):
        os.mkdir(self.path(name))

    def take_symlink(self, name, target):
        os.symlink(target, self.path(name))

    def take_remove(self, name):
        if self.state.nodes[name] == "dir":
            os.rmdir(self.path(name))
        else:
            os.unlink(self.path(name))

    def take_link(self, name, new):
        os.link(self.path(name), self.path(new))

    def take_rename(self, name, new):
        os.rename(self.path(name), self.path(new))

    # -- often needed

    def new_file(self, name):
        self.step("create", name, self.state.next_file)

    def write_some(self, name, length):
        """In several writes of odd sizes."""
        while length > 0:
            part = min(length, self.rng.choice([units.SIZE, 3000, 4096, 65536, 100_001, 1 << 20]))
            self.step("write", name, part)
            length -= part

    def names(self, kind):
        """Paths that are a directory ("dir"), a file ("file") or a symbolic link ("link")."""
        def is_kind(node):
            return node == "dir" if kind == "dir" else isinstance(node, state.File) if kind == "file" else isinstance(node, tuple)
        return sorted(path for path, node in self.state.nodes.items() if is_kind(node))


class Creator(Writer):
    """Many files of all sizes, most of them synced; the oldest are deleted, folders come and go."""

    FILES = 40

    def turn(self):
        group = f"d{self.state.next_file // 10}"
        if group not in self.state.nodes:
            self.step("mkdir", group)
        name = f"{group}/f{self.state.next_file}"
        self.new_file(name)
        self.write_some(name, self.rng.choice([0, 1, 700, 4096, 10_000, self.rng.randrange(200_000), self.rng.randrange(1_500_000)]))
        if self.rng.random() < 0.7:
            self.step("fsync", name)
        self.close(name)
        files = self.names("file")
        while len(files) > self.FILES:
            self.step("remove", files.pop(0))
        for folder in self.names("dir"):
            if folder != group and not any(n.startswith(folder + "/") for n in self.state.nodes):
                self.step("remove", folder)


class Checkpointer(Writer):
    """Write a temporary file, rename it over the last one: the reader sees the old or the new one whole."""

    def turn(self):
        if "temporary" in self.state.nodes:
            self.step("remove", "temporary")
        self.new_file("temporary")
        self.write_some("temporary", self.rng.randrange(1, 2_500_000))
        if self.rng.random() < 0.5:
            self.step("fsync", "temporary")
        if self.rng.random() < 0.5:
            self.close("temporary")
        self.step("rename", "temporary", "checkpoint")
        self.close("temporary")


class Saver(Writer):
    """Checkpoints of several files in a directory of their own: each is synced, or the directory, which then gets its name."""

    KEPT = 3

    def turn(self):
        name = f"step-{self.state.next_file}"
        temporary = name + ".tmp"
        if temporary not in self.state.nodes:
            self.step("mkdir", temporary)
        together = self.rng.random() < 0.5
        for part in range(self.rng.randrange(1, 6)):
            path = f"{temporary}/part-{part}"
            self.new_file(path)
            self.write_some(path, self.rng.choice([1, 700, 30_000, self.rng.randrange(1_500_000)]))
            if not together:
                self.step("fsync", path)
            self.close(path)
        if together:
            self.step("fsync_all")
        self.step("rename", temporary, name)
        for folder in self.names("dir")[:-self.KEPT]:
            for path in self.names("file"):
                if path.startswith(folder + "/"):
                    self.step("remove", path)
            self.step("remove", folder)


class Logger(Writer):
    """Appends a few records and syncs, on and on; at a size the log is put aside."""

    def turn(self):
        if "log" not in self.state.nodes:
            self.new_file("log")
        self.open_again("log")
        for _ in range(self.rng.randrange(1, 6)):
            self.step("write", "log", self.rng.randrange(1, 6000))
        if self.rng.random() < 0.8:
            self.step("fsync", "log")
        if self.state.nodes["log"].written > 800_000:
            self.close("log")
            self.step("rename", "log", "log.old")


class Gardener(Writer):
    """Names only: directories, empty and small files, hard and symbolic links, moved about and removed."""

    def turn(self):
        self.rng.choice([self.plant, self.plant, self.move, self.move, self.join, self.prune, self.prune, self.point])()

    def somewhere(self):
        folder = self.rng.choice([""] + self.names("dir"))
        name = f"n{self.rng.randrange(30)}"
        path = f"{folder}/{name}" if folder else name
        return path if path.count("/") < 4 else name

    def plant(self):
        path = self.somewhere()
        if path in self.state.nodes:
            return
        if self.rng.random() < 0.4:
            self.step("mkdir", path)
            return
        self.new_file(path)
        if self.rng.random() < 0.3:
            self.step("write", path, 2000)
        self.close(path)

    def move(self):
        if not self.state.nodes:
            return
        old, new = self.rng.choice(sorted(self.state.nodes)), self.somewhere()
        node, there = self.state.nodes[old], self.state.nodes.get(new)
        if new == old or new.startswith(old + "/") or (there is not None and (node == "dir" or there == "dir")):
            return
        self.step("rename", old, new)

    def join(self):
        files, new = self.names("file"), self.somewhere()
        if files and new not in self.state.nodes:
            self.step("link", self.rng.choice(files), new)

    def point(self):
        path = self.somewhere()
        if path not in self.state.nodes:
            self.step("symlink", path, f"../somewhere/{self.rng.randrange(1000)}")

    def prune(self):
        loose = [p for p in sorted(self.state.nodes) if not any(n.startswith(p + "/") for n in self.state.nodes)]
        if len(loose) > 5:
            self.step("remove", self.rng.choice(loose))


class Overwriter:
    """One file, overwritten in random places; each unit must be a generation between the synced and the written one.

    What it knows is in shared memory: for each unit the generation last written, and last synced."""

    UNITS = 2048

    def __init__(self, number, folder, notes, seed):
        self.number, self.folder, self.seed = number, folder, seed
        self.name = f"overwriter-{number}"
        self.file = number * 10 ** 9
        size = self.UNITS * 8
        self.written = memoryview(mmap.mmap(-1, size)).cast("Q")
        self.synced = memoryview(mmap.mmap(-1, size)).cast("Q")

    def path(self):
        return os.path.join(self.folder, "block")

    def prepare(self):
        """Before the first crash."""
        with open(self.path(), "wb", buffering=0) as f:
            f.write(units.stream(self.file, 0, self.UNITS * units.SIZE))
            os.fsync(f.fileno())

    def begin(self, turn):
        self.rng = random.Random(f"{self.seed} {self.name} {turn}")
        self.fd = os.open(self.path(), os.O_RDWR)

    def turn(self):
        for _ in range(self.rng.randrange(1, 8)):
            first = self.rng.randrange(self.UNITS)
            count = min(self.rng.choice([1, 1, 2, 8, 300]), self.UNITS - first)
            generation = max(self.written[first:first + count]) + 1
            data = b"".join(units.unit(self.file, (first + i) * units.SIZE, generation) for i in range(count))
            for i in range(first, first + count):
                self.written[i] = generation    # noted before: it may get there without being acknowledged
            if self.rng.random() < 0.3:
                self.write_mapped(first * units.SIZE, data)
            else:
                os.pwrite(self.fd, data, first * units.SIZE)
        os.fsync(self.fd)
        self.synced[:] = self.written

    def write_mapped(self, offset, data):
        with mmap.mmap(self.fd, self.UNITS * units.SIZE) as memory:
            memory[offset:offset + len(data)] = data

    def check(self, exact):
        data = state.read_file(self.path())
        if len(data) != self.UNITS * units.SIZE:
            raise state.Wrong(f"{len(data)} bytes are there, not {self.UNITS * units.SIZE}")
        for i in range(self.UNITS):
            at = i * units.SIZE
            found = units.parse(data[at:at + units.SIZE])
            least = self.written[i] if exact else self.synced[i]
            if found is None or found[:2] != (self.file, at) or not least <= found[2] <= self.written[i]:
                raise state.Wrong(f"at {at} there is {units.describe(data[at:at + units.SIZE])}; generation {self.synced[i]} was synced, "
                                  f"{self.written[i]} written")
            self.written[i] = self.synced[i] = found[2]


KINDS = [Creator, Checkpointer, Logger, Gardener, Overwriter, Creator]
