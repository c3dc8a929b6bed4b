"""Programs that are killed after so many calls, while threads of theirs do all kinds of things to the same open files."""
import contextlib
import fcntl
import mmap
import os
import random
import struct
import threading

import syscalls as sys_
from blocks import Blocks
from program import Program
from suite import case
from waiting import wait_until


class Syncs:
    """A program that writes and syncs on one descriptor, and counts its syncs."""

    def __init__(self, path, blocks):
        self.path, self.blocks, self.shared = path, blocks, mmap.mmap(-1, mmap.PAGESIZE)

    def count(self):
        return struct.unpack_from("Q", self.shared)[0]

    def _loop(self, fd):
        self.blocks.write_for_ever(fd)
        while True:
            os.fsync(fd)
            struct.pack_into("Q", self.shared, 0, self.count() + 1)

    def start(self):
        program = Program(lambda: os.open(self.path, os.O_RDWR), self._loop)
        program.go()
        return program


def kill_writers(t, kills, at_once):
    """Each after a few syncs."""
    files = [t.file(f"file{n}", bytes(Blocks.BYTES)) for n in range(at_once)]
    blocks = [Blocks() for _ in files]
    for _ in range(kills):
        syncs = [Syncs(path, b) for path, b in zip(files, blocks)]
        with contextlib.ExitStack() as stack:
            programs = [stack.enter_context(s.start()) for s in syncs]
            wait_until(lambda: all(s.count() >= 3 for s in syncs), 60, "programs to sync")
            for program in programs:
                program.kill()
            for program in programs:
                program.wait_gone()
        for path, b in zip(files, blocks):
            t.equal(b.wrong(path), [], "blocks")


@case
def a_program_that_writes_and_syncs_is_killed(t):
    kill_writers(t, 500 if t.long else 40, 1)


@case
def three_programs_that_write_and_sync_are_killed_at_once(t):
    kill_writers(t, 300 if t.long else 15, 3)


# ---- Everything

MAPPED = 65536


class Player:
    """A thread of a program that will be killed."""

    FILES = 3

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.calls = [self.read, self.write, self.append, self.sync, self.sync, self.sync_folder, self.seek, self.allocate, self.punch,
                      self.copy, self.cut, self.stat, self.xattr, self.listing, self.lock, self.lock_test, self.wait_for_lock,
                      self.flock, self.reopen, self.map, self.make, self.vacuum]

    def open(self, flags=os.O_RDWR):
        return os.open(os.path.join(self.folder, str(self.rng.randrange(self.FILES))), flags | os.O_CREAT, 0o644)

    def at(self):
        return self.rng.randrange(64) * 4096

    def read(self, fd):
        os.pread(fd, 65536, self.at())

    def write(self, fd):
        os.pwrite(fd, bytes([self.rng.randrange(256)]) * self.rng.choice((100, 4096, 300000)), self.at())

    def append(self, fd):
        mine = self.open(os.O_RDWR | os.O_APPEND)
        try:
            os.write(mine, b"x" * 5000)
            os.pread(mine, 65536, self.at())
            os.fsync(mine)
        finally:
            os.close(mine)

    def sync(self, fd):
        os.fsync(fd)

    def sync_folder(self, fd):
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def seek(self, fd):
        os.lseek(fd, self.at(), self.rng.choice((os.SEEK_DATA, os.SEEK_HOLE)))

    def allocate(self, fd):
        os.posix_fallocate(fd, self.at(), 8192)

    def punch(self, fd):
        sys_.fallocate(fd, sys_.FALLOC_PUNCH_HOLE | sys_.FALLOC_KEEP_SIZE, self.at(), 8192)

    def copy(self, fd):
        os.copy_file_range(fd, fd, 8192, 0, 1 << 20)

    def cut(self, fd):
        os.ftruncate(fd, self.at())

    def stat(self, fd):
        os.fstat(fd)
        os.stat(os.path.join(self.folder, "none"), follow_symlinks=False)

    def xattr(self, fd):
        os.setxattr(fd, "user.killed", b"value")
        os.getxattr(fd, "user.killed")

    def listing(self, fd):
        for entry in os.scandir(self.folder):
            entry.stat()

    def lock(self, fd):
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.rng.randrange(4))

    def lock_test(self, fd):
        fcntl.fcntl(fd, fcntl.F_GETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0))

    def wait_for_lock(self, fd):
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 10)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 10)

    def flock(self, fd):
        fcntl.flock(fd, fcntl.LOCK_EX)
        fcntl.flock(fd, fcntl.LOCK_UN)

    def reopen(self, fd):
        os.close(self.open(self.rng.choice((os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC))))

    def map(self, fd):
        """A file that nobody cuts: who touches a page behind the end is killed by that."""
        mine = os.open(os.path.join(self.folder, "mapped"), os.O_RDWR)
        try:
            os.posix_fadvise(mine, 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(mine, MAPPED) as m:
                m[self.rng.randrange(MAPPED)] = 1
                m.flush()
        finally:
            os.close(mine)

    def make(self, fd):
        path = os.path.join(self.folder, f"new{self.rng.randrange(100)}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
        os.rename(path, path + ".moved")
        os.unlink(path + ".moved")

    def vacuum(self, fd):
        """The next read asks the mount."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def play(self, fds, counts, own):
        while True:
            with contextlib.suppress(OSError, ValueError):
                self.rng.choice(self.calls)(self.rng.choice(fds))
            counts[own] += 1


class Crowd:
    """A program with several threads that share two open files, and count their calls."""

    THREADS = 4

    def __init__(self, folder, seed):
        self.players = [Player(folder, seed * 100 + n) for n in range(self.THREADS)]
        self.counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def calls(self):
        return sum(self.counts[:self.THREADS])

    def _play(self, fds):
        for own, player in enumerate(self.players[1:], 1):
            threading.Thread(target=player.play, args=(fds, self.counts, own), daemon=True).start()
        self.players[0].play(fds, self.counts, 0)

    def start(self):
        program = Program(lambda: [self.players[0].open(), self.players[0].open()], self._play)
        program.go()
        return program


@case(seconds=3600)
def programs_that_do_everything_are_killed(t):
    rng = random.Random(1)
    mount = t.site.main_mount
    t.file("mapped", bytes(MAPPED))
    early = 0
    for n in range(400 if t.long else 20):
        crowds = [Crowd(t.dir, n * 10 + k) for k in range(2)]
        enough = rng.randrange(2, 100)
        with contextlib.ExitStack() as stack:
            programs = [stack.enter_context(crowd.start()) for crowd in crowds]
            wait_until(lambda: sum(crowd.calls() for crowd in crowds) >= enough or any(p.is_gone() for p in programs), 60,
                       f"{enough} calls")
            early += sum(program.is_gone() for program in programs)
            for program in programs:
                if not program.is_gone():
                    program.kill()
            for program in programs:
                program.wait_gone()
        if not mount.alive():
            break
    t.true(mount.alive(), "the mount lives")
    t.equal(early, 0, "programs that ended by themselves")
    t.equal([name for name in t.names() if len(t.read(t.path(name))) != os.stat(t.path(name)).st_size], [], "files of another size")
