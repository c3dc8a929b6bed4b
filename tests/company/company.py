"""Several mounts of one volume, and processes that work on them.

    company = Company(site, 2)
    a, b = company.points
    with Hands(site, a, b) as (ann, ben):
        fd = ann.call(os.open, a + "/f", os.O_RDWR | os.O_CREAT)
        ann.call(os.write, fd, b"x")

Things that only show between processes (record locks), or that must not stop the test itself when they hang
(memory that is mapped: a page fault cannot be given up), are done by hands."""
import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import traceback

from keeper import mount_points
from waiting import TookTooLong

PR_SET_PDEATHSIG = 1
HAND_SECONDS = 30
VOLUME = "shared"


class Company:
    """A server with a strict volume and several mounts of it."""

    def __init__(self, site, mounts=2, volume=("--block-size", "64KiB"), server=(), options=(), name=""):
        self.site, self.options = site, list(options)
        self.server = site.server(f"server{name}", options=server)
        self.server.volume(VOLUME, *volume)
        self.mounts = []
        for k in range(mounts):
            self.join(f"mount{name}-{'abcdefghijkl'[k]}")

    def join(self, name, address=None):
        """One more mount."""
        mount = self.server.mount(VOLUME, name=name, options=self.options, address=address)
        self.mounts.append(mount)
        return mount

    points = property(lambda self: [mount.point for mount in self.mounts])

    def revive(self):
        """After a failed case: whatever is dead is started again."""
        if not self.server.alive():
            self.server.note_crash()
            self.server.start()
        for mount in self.mounts:
            if not mount.alive() or not mount.answers():
                mount.discard()
                if mount_points(mount.point):
                    raise TookTooLong(f"{mount.point} cannot be unmounted")
                mount.start()

    def print_stacks(self):
        """Of the server and all mounts, for the report of a hang."""
        for daemon in [self.server, *self.mounts]:
            if daemon.alive():
                daemon.print_stacks()

    def where(self, path):
        """The mount a path is on and the path below it, for messages."""
        for mount in self.mounts:
            if path.startswith(mount.point + "/"):
                return f"{mount.name[-1]}:{path[len(mount.point) + 1:]}"
        return path

    def problems(self):
        """Ends everything in order; what was wrong, as lines."""
        found = []
        self.server.wait_ready()
        for mount in self.mounts:
            code = mount.umount()
            if code:
                found.append(f"{mount.name} ended with {code}")
        clean, text = self.server.fsck()
        if not clean:
            found.append(f"fsck is not clean: {text.strip()}")
        return found


class Local:
    """The same of a folder of another file system, seen by several paths: to check the tests themselves."""

    server, mounts = None, []

    def __init__(self, folder, mounts):
        os.mkdir(os.path.join(folder, "real"))
        self.points = []
        for letter in "abcdefghijkl"[:mounts]:
            self.points.append(os.path.join(folder, f"mnt-{letter}"))
            os.symlink("real", self.points[-1])

    def revive(self):
        """There is nothing to revive."""

    print_stacks = revive

    def problems(self):
        return []

    def where(self, path):
        return next((f"{p[-1]}:{path[len(p) + 1:]}" for p in self.points if path.startswith(p + "/")), path)


def die_with_parent():
    """The process goes when the test goes, whatever happens to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class HandFailed(Exception):
    """What a hand raised that was no OSError, with its stack."""


class Hand:
    """A process that does what it is told, one call at a time."""

    def __init__(self, keeper, name):
        self.name = name
        self.pipe, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent()
                self.pipe.close()
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        keeper.process(self.pid)

    def start(self, function, *args, **options):
        """Has it begin; finish() tells what came of it."""
        self.pipe.send((function, args, options))

    def done(self, seconds=0):
        """Whether it has finished what it was last told."""
        return self.pipe.poll(seconds)

    def finish(self, seconds=HAND_SECONDS):
        if not self.pipe.poll(seconds):
            raise TookTooLong(f"{self.name}: no answer within {seconds:.0f} s; it is in {self.whereabouts()}")
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            raise HandFailed(f"{self.name} is gone") from None
        if kind == "value":
            return value
        if kind == "errno":
            raise OSError(*value)
        raise HandFailed(f"{self.name}: {value}")

    def whereabouts(self):
        """The functions of the kernel it waits in, the innermost first."""
        try:
            with open(f"/proc/{self.pid}/stack", encoding="ascii") as f:
                return " < ".join(line.split("] ", 1)[-1].split("+")[0] for line in f.read().splitlines()[:8]) or "no system call"
        except OSError as error:
            return f"an unknown place ({error})"

    def call(self, function, *args, seconds=HAND_SECONDS, **options):
        self.start(function, *args, **options)
        return self.finish(seconds)

    def error(self, function, *args, seconds=HAND_SECONDS, **options):
        """The errno of the call, 0 if it worked."""
        try:
            self.call(function, *args, seconds=seconds, **options)
            return 0
        except OSError as error:
            return error.errno

    def end(self):
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(self.pid, 0)
            self.pid = 0
            self.pipe.close()


def _serve(pipe):
    """In the hand's process."""
    while True:
        try:
            function, args, options = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("value", function(*args, **options))
        except OSError as error:
            answer = ("errno", (error.errno, f"{getattr(function, '__name__', 'call')}: {error}"))
        except BaseException as error:
            answer = ("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pipe.send(answer)


class Hands:
    """Some of them, ended with the block."""

    def __init__(self, site, *names):
        self.all = [Hand(site.keeper, os.path.basename(name)) for name in names]

    def __enter__(self):
        return self.all

    def __exit__(self, *_):
        for hand in self.all:
            hand.end()


# -- memory mappings of a hand: they cannot travel through a pipe, so they stay and have numbers

_maps = {}


def map_file(fd, length, write=True):
    number = len(_maps)
    _maps[number] = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    return number


def map_read(number, start, end):
    return _maps[number][start:end]


def map_write(number, start, data):
    _maps[number][start:start + len(data)] = data


def map_sync(number):
    _maps[number].flush()


def map_drop(number):
    _maps[number].close()


def write_all(fd, data):
    """One write(2) for each call that takes all; for tests that care, the count of calls is returned."""
    view, calls = memoryview(data), 0
    while view:
        view = view[os.write(fd, view):]
        calls += 1
    return calls


def put(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o644, sync=False):
    """Opens, writes, closes."""
    fd = os.open(path, flags, mode)
    try:
        write_all(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def take(path):
    """All of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return take_open(fd)
    finally:
        os.close(fd)


def take_open(fd, at=0):
    parts = []
    while part := os.pread(fd, 1 << 20, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def both(test, name):
    """A path as each of the first two mounts sees it."""
    return os.path.join(test.a, name), os.path.join(test.b, name)


def sides(test, name):
    """(from, to) in both directions: what holds from a to b must hold from b to a."""
    a, b = both(test, name)
    return (a, b), (b, a)
