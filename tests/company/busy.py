"""Processes that all work in one directory, over several mounts, and know what they must see.

Each thing in the directory carries a version.  Two registers in memory shared by all processes go with it: the version
whose making has begun, and the last one whose making has returned.  Whoever looks notes the second before he looks and
the first after it: what he sees must be no older than the one and no newer than the other."""
import errno
import fcntl
import mmap
import os
import random
import time

from locking import record_lock

THINGS_MAX = 64
FILE_BYTES = 8192
SIZE_MAX = 1 << 20
STALL_SECONDS = 1.0
MAPPING, WAIT = "a mapping", "wait for a lock"

_registers = None       # for each thing: begun, done; then the command to stop; then a counter of steps for each process; then one of stops for each mount


def prepare():
    """Before the processes are made."""
    global _registers
    _registers = memoryview(mmap.mmap(-1, 8 * (2 * THINGS_MAX + 64))).cast("Q")
    return _registers


def stop_all():
    _registers[2 * THINGS_MAX] = 1


def steps(process):
    return _registers[2 * THINGS_MAX + 1 + process]


def stops(mount):
    """Odd while it may be stopped."""
    return _registers[2 * THINGS_MAX + 32 + mount]


def note_stop(mount):
    """Before it is stopped, and after it was continued."""
    _registers[2 * THINGS_MAX + 32 + mount] += 1


class Stale(Exception):
    pass


class Thing:
    """kind: one of KINDS.  Only its owner makes new versions, except of a counter, which is locked."""

    def __init__(self, number, kind, owner):
        self.number, self.kind, self.owner = number, kind, owner
        self.name = f"{kind}-{number}"

    begun = property(lambda self: _registers[2 * self.number], lambda self, v: _registers.__setitem__(2 * self.number, v))
    done = property(lambda self: _registers[2 * self.number + 1], lambda self, v: _registers.__setitem__(2 * self.number + 1, v))


KINDS = ["content", "mapped", "renamed", "size", "exists", "mode", "counter"]


def things(processes, kinds=None):
    """One of each kind for each process, but only two counters."""
    made = []
    for owner in range(processes):
        for kind in kinds or KINDS:
            if kind != "counter" or owner < 2:
                made.append(Thing(len(made), kind, owner))
    return made


def set_up(folder, all_things):
    for thing in all_things:
        path = os.path.join(folder, thing.name)
        if thing.kind != "exists":
            with open(path, "wb") as f:
                if thing.kind in ("content", "mapped", "counter"):
                    f.write(bytes(FILE_BYTES))
                elif thing.kind == "renamed":
                    f.write(bytes(8))
        if thing.kind == "mode":
            os.chmod(path, 0o400)
        elif thing.kind == "size":
            os.truncate(path, Actor.size_of(thing, 0))
    open(os.path.join(folder, "log"), "wb").close()


class Actor:
    """In a process of its own.  careful: everything is synced, because a mount may be stopped at any moment.  patient: it waits
    for locks; those of a stopped mount stay its own, however long that takes."""

    def __init__(self, process, folder, mount, all_things, seed, careful, patient):
        self.process, self.folder, self.mount, self.things = process, folder, mount, all_things
        self.careful, self.patient = careful, patient
        self.rng = random.Random(f"{seed} actor {process}")
        self.mine = [t for t in all_things if t.owner == process and t.kind != "counter"]
        self.counters = [t for t in all_things if t.kind == "counter"]
        self.fds, self.maps = {}, {}
        self.slowest = {}               # what -> (seconds, when it began)
        self.stalls = []                # (what, began, ended) of all that took long
        self.counts = {}
        self.appended = 0
        self.kept = []                  # records of the log that were acknowledged
        self.complaint = None
        self.refused = []               # (what, errno, when)

    def path(self, thing):
        return os.path.join(self.folder, thing.name)

    def timed(self, what, function, *args):
        began = time.monotonic()
        try:
            return function(*args)
        finally:
            ended = time.monotonic()
            took = ended - began
            self.counts[what] = self.counts.get(what, 0) + 1
            if took > self.slowest.get(what, (0,))[0]:
                self.slowest[what] = (took, began)
            if took > STALL_SECONDS / 2:
                self.stalls.append((what, began, ended))

    def fd(self, thing):
        if thing.number not in self.fds or self.rng.random() < 0.05:
            if thing.number in self.fds:
                os.close(self.fds.pop(thing.number))
            self.fds[thing.number] = self.timed("open", os.open, self.path(thing), os.O_RDWR)
        return self.fds[thing.number]

    def map(self, thing):
        if thing.number not in self.maps:
            self.maps[thing.number] = mmap.mmap(self.fd(thing), FILE_BYTES)
        return self.maps[thing.number]

    # -- making a new version

    def make(self, thing):
        version = thing.done + 1
        thing.begun = version
        try:
            self.timed(f"make {thing.kind}", getattr(self, f"make_{thing.kind}"), thing, version)
        except OSError as error:
            self.note_refusal(f"make {thing.name}", error)
            self.forget(thing)          # the same version is made again some time
            return
        thing.done = version

    def note_refusal(self, what, error):
        """A mount that was away for longer than its lease may have to say that what was not synced is lost; nobody else may."""
        if not self.careful or error.errno not in (errno.EIO, errno.ESTALE):
            raise error
        self.refused.append((what, errno.errorcode[error.errno], time.monotonic()))

    def forget(self, thing):
        if thing.number in self.fds:
            try:
                os.close(self.fds.pop(thing.number))
            except OSError as error:
                self.note_refusal(f"close {thing.name}", error)

    def _sync(self, fd):
        if self.careful:
            os.fsync(fd)

    def make_content(self, thing, version):
        fd = self.fd(thing)
        os.pwrite(fd, version.to_bytes(8, "little"), 4096 * (version % 2))
        os.pwrite(fd, version.to_bytes(8, "little"), 4096 * (1 - version % 2))
        self._sync(fd)

    def make_mapped(self, thing, version):
        view = self.map(thing)
        view[0:8] = version.to_bytes(8, "little")
        view[4096:4104] = version.to_bytes(8, "little")
        if self.careful:
            view.flush()

    def make_renamed(self, thing, version):
        temporary = self.path(thing) + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            try:
                os.write(fd, version.to_bytes(8, "little"))
                self._sync(fd)
            finally:
                os.close(fd)
        except OSError:
            os.unlink(temporary)
            raise
        os.rename(temporary, self.path(thing))

    def make_size(self, thing, version):
        size = self.size_of(thing, version)
        if self.rng.random() < 0.5:
            os.ftruncate(self.fd(thing), size)
        else:
            os.truncate(self.path(thing), size)

    @staticmethod
    def size_of(thing, version):
        """Of some it grows, of others it shrinks."""
        return version if thing.number % 2 else SIZE_MAX - version

    def make_exists(self, thing, version):
        if version % 2:
            os.close(os.open(self.path(thing), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        else:
            os.unlink(self.path(thing))

    def make_mode(self, thing, version):
        os.chmod(self.path(thing), 0o400 + version % 256)

    # -- looking

    def look(self, thing):
        """Raises Stale if what is seen is not of these moments."""
        least, stopped = thing.done, stops(self.mount)
        seen, how = self.timed(f"look {thing.kind}", getattr(self, f"look_{thing.kind}"), thing)
        most = thing.begun
        if how.endswith(MAPPING) and (stopped % 2 or stops(self.mount) != stopped):
            return              # nobody can take pages from the kernel while its mount is stopped
        if not any(self.fits(thing, seen, version) for version in range(least, most + 1)):
            raise Stale(f"{thing.name} (owner {thing.owner}) seen {how} as {seen}; version {least} was made before, {most} begun after")

    def fits(self, thing, seen, version):
        if thing.kind == "size":
            return seen == self.size_of(thing, version)
        if thing.kind == "exists":
            return seen == bool(version % 2)
        if thing.kind == "mode":
            return seen == 0o400 + version % 256
        return seen == version

    def look_content(self, thing):
        at, way = self.rng.choice([0, 4096]), self.rng.randrange(3)
        if way == 0:
            fd = os.open(self.path(thing), os.O_RDONLY)
            data = os.pread(fd, 8, at)
            os.close(fd)
        elif way == 1:
            data = os.pread(self.fd(thing), 8, at)
        else:
            if self.careful:    # a mount that was stopped takes away what has changed before it answers anybody
                os.close(os.open(self.path(thing), os.O_RDONLY))
            data = self.map(thing)[at:at + 8]
        return int.from_bytes(data, "little"), f"at {at} by {['open and read', 'read of an open file', MAPPING][way]}"

    look_mapped = look_content

    def look_renamed(self, thing):
        with open(self.path(thing), "rb", buffering=0) as f:
            return int.from_bytes(f.read(8), "little"), "by open and read"

    def look_size(self, thing):
        if self.rng.random() < 0.5:
            return os.fstat(self.fd(thing)).st_size, "by fstat"
        return os.stat(self.path(thing)).st_size, "by stat"

    def look_exists(self, thing):
        if self.rng.random() < 0.3:
            return thing.name in os.listdir(self.folder), "in a listing"
        try:
            os.stat(self.path(thing))
            return True, "by stat"
        except FileNotFoundError:
            return False, "by stat"

    def look_mode(self, thing):
        return os.stat(self.path(thing)).st_mode & 0o777, "by stat"

    # -- what is locked

    def count(self, thing):
        """Adds one to a counter in a file under a lock: nobody else may be seen in between."""
        if thing.number not in self.fds:        # it stays: closing any of the file's would let the lock go
            self.fds[thing.number] = os.open(self.path(thing), os.O_RDWR)
        fd = self.fds[thing.number]
        try:
            self.timed(WAIT if self.patient else "lock", record_lock, fd, fcntl.LOCK_EX, 0, 0, self.patient)
        except OSError as error:
            if error.errno == errno.EAGAIN and not self.patient:
                return
            raise
        version, begun = thing.done, thing.begun
        if begun != version:
            raise Stale(f"{thing.name}: two have the lock: {begun} has begun while {version} is done")
        thing.begun = version + 1
        seen = int.from_bytes(self.timed("look counter", os.pread, fd, 8, 0), "little")
        if seen != version:
            raise Stale(f"{thing.name}: under the lock {seen} is read, {version} was written")
        try:
            self.timed("make counter", os.pwrite, fd, (version + 1).to_bytes(8, "little"), 0)
            self._sync(fd)
            thing.done = version + 1
        except OSError as error:
            self.note_refusal(f"make {thing.name}", error)
            self.settle(thing, version)
            return
        self.timed("unlock", record_lock, fd, fcntl.LOCK_UN, 0, 0)

    def settle(self, thing, version):
        """Still under the lock: was it written or not?  Closing lets the lock go."""
        other = os.open(self.path(thing), os.O_RDWR)
        seen = int.from_bytes(os.pread(other, 8, 0), "little")
        if seen not in (version, version + 1):
            raise Stale(f"{thing.name}: after a refused write {seen} is read, not {version} or {version + 1}")
        thing.begun = thing.done = seen
        os.close(other)
        self.forget(thing)

    def append(self):
        """A record to the log that all share."""
        record = b"<%d %d>" % (self.process, self.appended)
        self.appended += 1
        fd = os.open(os.path.join(self.folder, "log"), os.O_WRONLY | os.O_APPEND)
        try:
            self.timed("append", os.write, fd, record)
            self._sync(fd)
            self.kept.append(record)
        except OSError as error:
            self.note_refusal("append", error)
        finally:
            try:
                os.close(fd)
            except OSError as error:
                self.note_refusal("close of the log", error)

    def one(self):
        dice = self.rng.random()
        if dice < 0.35:
            self.make(self.rng.choice(self.mine))
        elif dice < 0.45 and self.counters:
            self.count(self.rng.choice(self.counters))
        elif dice < 0.5 and self.counters:
            self.append()
        else:
            self.look(self.rng.choice([t for t in self.things if t.kind != "counter"]))

    def close(self):
        for view in self.maps.values():
            view.close()
        for fd in self.fds.values():
            try:
                os.close(fd)
            except OSError as error:
                self.complaint = self.complaint or f"close: {error}"


def act(process, folder, mount, all_things, seed, careful, patient):
    """In a hand: until told to stop.  What was seen, for the judge."""
    actor = Actor(process, folder, mount, all_things, seed, careful, patient)
    problem = None
    try:
        while not _registers[2 * THINGS_MAX]:
            actor.one()
            _registers[2 * THINGS_MAX + 1 + process] += 1
    except (Stale, OSError, ValueError) as error:      # ValueError: a file is shorter than what is to be mapped
        problem = f"process {process} ({os.path.basename(os.path.dirname(folder))}) at step {steps(process)}: {type(error).__name__}: {error}"
        stop_all()
    actor.close()           # and with it any lock that others may be waiting for
    return {"problem": problem or actor.complaint, "slowest": actor.slowest, "stalls": actor.stalls, "counts": actor.counts, "kept": actor.kept,
            "refused": actor.refused}


def pulse(folder):
    """In a hand: how the machine itself hesitates: moments when neither the processor nor the disk was to be had."""
    hiccups, path = [], os.path.join(folder, "pulse")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    beat = 0
    while not _registers[2 * THINGS_MAX]:
        began = time.monotonic()
        time.sleep(0.01)
        beat += 1
        if beat % 8 == 0:
            os.pwrite(fd, b"%d" % beat, 0)
            os.fsync(fd)
        ended = time.monotonic()
        if ended - began > 0.06:
            hiccups.append((began + 0.01, ended))
    os.close(fd)
    os.unlink(path)
    return hiccups


def excused(began, ended, hiccups):
    """How long something took beyond what the machine itself hesitated meanwhile."""
    return ended - began - sum(max(0, min(ended, h[1]) - max(began, h[0])) for h in hiccups)
