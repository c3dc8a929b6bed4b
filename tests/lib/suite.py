"""Cases and checks: the small frame the suites are written in.

A case is a function with one argument, the Test.  Its name tells what holds.  A check that fails is
recorded and the case goes on; anything raised ends the case and counts as one failed check.  When
all cases are done their folders are looked at again with cold caches after a new mount: what is on
disk must be what was seen.
"""
import errno
import os
import sys
import time
import traceback

from mounting import over_tcp, writes_back
from tree import differences, picture_tree
from users import ROOT, Refused, run_as
from waiting import TookTooLong, wait_until


class Case:
    def __init__(self, function, only=None, long=False, seconds=60, lasting=True, by_socket=False, stored=False, chance=False):
        self.function, self.only, self.long, self.seconds, self.lasting = function, only, long, seconds, lasting
        self.chance = chance
        self.by_socket, self.stored = by_socket, stored
        self.name = function.__name__
        self.group = function.__module__.removesuffix("_cases")


CASES = []


def case(function=None, **options):
    """Registers a case.  only="epochfs": cannot run on another file system; long: in the long variant only; chance: what it meets depends on chance
    and the machine, so it runs with --chance and in the long variant;
    lasting=False: what it leaves behind is not compared after the new mount; by_socket: left out where mounts reach their
    server over TCP, because there it takes the server five minutes to notice that a mount was killed; stored: left out where mounts
    write back, because what one that is away has synced is on its own disk, and nobody else may read it."""
    def register(f):
        CASES.append(Case(f, **options))
        return f
    return register(function) if function else register


def add_options(parser):
    parser.add_argument("--long", action="store_true", help="the longer variants, and the cases that only these have")
    parser.add_argument("--chance", action="store_true", help="what depends on chance and on the machine, too")


def selected(options):
    """The cases with a word of options.words in their names; long ones and those left to chance if asked for, by an option or by name."""
    def asked_for(c):
        return c.name in options.words or ((options.long or not c.long) and (options.long or options.chance or not c.chance))

    return [c for c in CASES if (not options.words or any(w in f"{c.group}.{c.name}" for w in options.words)) and asked_for(c)]


def possible(cases):
    """Those that can be run the way mounts are made here.  The others are named, and count neither as passed nor as failed."""
    left_out = {"over TCP, where a killed mount is noticed after five minutes": [c for c in cases if c.by_socket and over_tcp()],
                "with write-back, where a mount that is away has the only copy": [c for c in cases if c.stored and writes_back()]}
    for why, some in left_out.items():
        for c in some:
            print(f"left out {why}: {c.group}.{c.name}", flush=True)
    return [c for c in cases if not any(c in some for some in left_out.values())]


def errno_name(number):
    return errno.errorcode.get(number, str(number))


class Score:
    def __init__(self):
        self.passed, self.failed, self.places, self.failures, self.skipped = 0, 0, set(), [], []

    def line(self):
        return f"{self.passed} passed, {self.failed} failed"


class Test:
    """What a case gets: a folder of its own, checks, and the site (None on another file system)."""

    def __init__(self, case_, folder, score, site=None, long=False):
        self.case, self.dir, self.score, self.site, self.long = case_, folder, score, site, long
        self.epochfs = site is not None
        self.bad = 0
        self._closing = []

    # -- folders and files

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def file(self, name, data=b"", mode=0o644, owner=None):
        """Makes a file with a content, mode and owner (a User), and returns its path."""
        path = self.path(name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view):]
        finally:
            os.close(fd)
        if owner:
            os.chown(path, owner.uid, owner.gid)
        os.chmod(path, mode)
        return path

    def folder(self, name, mode=0o755, owner=None):
        path = self.path(name)
        os.mkdir(path)
        if owner:
            os.chown(path, owner.uid, owner.gid)
        os.chmod(path, mode)
        return path

    def open(self, path, flags=os.O_RDONLY, mode=0o644):
        """Opens; closed when the case ends at the latest."""
        fd = os.open(path, flags, mode)
        self._closing.append(fd)
        return fd

    def close(self, fd):
        self._closing.remove(fd)
        os.close(fd)

    def read(self, path):
        with open(path, "rb") as f:
            return f.read()

    def names(self, path=None):
        return sorted(os.listdir(path or self.dir))

    def finish(self):
        for fd in self._closing:
            os.close(fd)
        self._closing = []

    def tick(self):
        """Waits until the file system's clock has moved on, so that the next change gets a later time."""
        probe = self.path(".tick")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        first = os.stat(probe).st_ctime_ns

        def moved():
            os.chmod(probe, 0o600)
            return os.stat(probe).st_ctime_ns > first

        wait_until(moved, 10, "the clock of the file system to move")
        os.unlink(probe)

    # -- checks

    def _record(self, good, text, depth=2):
        frame = sys._getframe(depth)
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        self.score.places.add(place)
        if good:
            self.score.passed += 1
        else:
            self.score.failed += 1
            self.bad += 1
            self.score.failures.append(f"{self.case.group}.{self.case.name} ({place}): {text}")
            print(f"    FAILED {place}: {text}", flush=True)
        return good

    def true(self, condition, what):
        return self._record(bool(condition), f"{what}: not so")

    def equal(self, got, want, what=""):
        return self._record(got == want, f"{what + ': ' if what else ''}expected {_short(want)}, got {_short(got)}")

    def oct(self, got, want, what=""):
        return self._record(got == want, f"{what + ': ' if what else ''}expected {want:o}, got {got:o}")

    def fails(self, numbers, function, *args, user=None, what="", **options):
        """The call must fail with this errno (or one of these)."""
        wanted = numbers if isinstance(numbers, tuple) else (numbers,)
        names = " or ".join(errno_name(n) for n in wanted)
        label = what or _call_text(function, args)
        if user and user is not ROOT:
            label += f" as {user.name}"
        try:
            result = run_as(user, function, *args, umask=0) if user and user is not ROOT else function(*args, **options)
        except OSError as error:
            return self._record(error.errno in wanted, f"{label}: expected {names}, got {errno_name(error.errno)}")
        except Refused as error:
            return self._record(False, f"{label}: expected {names}, got {error}")
        if isinstance(result, int) and getattr(function, "__name__", "") in ("open", "openat", "creat") and not user:
            os.close(result)
        return self._record(False, f"{label}: expected {names}, but it worked")

    def works(self, function, *args, user=None, what="", **options):
        """The call must work; its result is returned (None if it did not)."""
        label = what or _call_text(function, args)
        if user and user is not ROOT:
            label += f" as {user.name}"
        try:
            result = run_as(user, function, *args, umask=0) if user and user is not ROOT else function(*args, **options)
        except OSError as error:
            self._record(False, f"{label}: expected it to work, got {errno_name(error.errno)}")
            return None
        except Refused as error:
            self._record(False, f"{label}: {error}")
            return None
        self._record(True, label)
        return result

    def mode(self, path, want, what="", follow=False):
        st = os.stat(path) if follow else os.lstat(path)
        return self.oct(st.st_mode & 0o7777, want, what or f"mode of {os.path.basename(path)}")

    def owner(self, path, uid, gid):
        st = os.lstat(path)
        return self.equal((st.st_uid, st.st_gid), (uid, gid), f"owner of {os.path.basename(path)}")

    def size(self, path, want):
        return self.equal(os.stat(path).st_size, want, f"size of {os.path.basename(path)}")

    def content(self, path, want):
        return self.equal(self.read(path), want, f"content of {os.path.basename(path)}")

    def as_user(self, user, function, *args, **options):
        return run_as(user, function, *args, **options)


def _short(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:140]} ... {text[-100:]} ({len(text)} characters)"


def _call_text(function, args):
    words = [os.path.basename(a) if isinstance(a, str) and "/" in a else _short(a) for a in args]
    return f"{getattr(function, '__name__', 'call').strip('<>')}({', '.join(map(str, words))[:200]})"


class Suite:
    """Runs cases in folders below `root` and compares what they left after `remount()`."""

    def __init__(self, root, site=None, remount=None, watchdog=None, long=False, verbose=False):
        self.root, self.site, self.remount, self.watchdog = root, site, remount, watchdog
        self.long, self.verbose = long, verbose
        self.score = Score()
        self.pictures = []

    def run(self, cases):
        for c in cases:
            if c.only == "epochfs" and not self.site:
                self.score.skipped.append(c.name)
                continue
            self._run_one(c)
        self._compare_after_remount()
        return self.score

    def _run_one(self, c):
        folder = os.path.join(self.root, f"{c.group}.{c.name}"[:200])
        began = time.monotonic()
        if self.verbose:
            print(f"{c.group}.{c.name}", flush=True)
        umask = os.umask(0)
        os.umask(0o022)
        test = None
        try:
            with self.watchdog.limit(c.seconds, c.name):
                os.mkdir(folder)
                os.chmod(folder, 0o777)
                test = Test(c, folder, self.score, self.site, self.long)
                try:
                    c.function(test)
                finally:
                    test.finish()
                if c.lasting:
                    self.pictures.append((c, test, picture_tree(folder)))
        except Exception as error:
            test = test or Test(c, folder, self.score)
            place = traceback.extract_tb(error.__traceback__)
            at = next((f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(place) if "_cases" in f.filename), "")
            self.score.failed += 1
            test.bad += 1
            text = f"{c.group}.{c.name} {at}: {type(error).__name__}: {error}"
            self.score.failures.append(text)
            print(f"    FAILED {text}", flush=True)
            if not isinstance(error, (OSError, TookTooLong)):
                traceback.print_exc()
            if self.site:
                self.site.revive()
        finally:
            os.umask(umask)
            if os.getcwd() != "/":
                os.chdir("/")
        if test.bad and not self.verbose:
            print(f"  {c.group}.{c.name}: {test.bad} failed", flush=True)
        elif self.verbose:
            print(f"    {time.monotonic() - began:.2f} s", flush=True)

    def _compare_after_remount(self):
        if not self.remount:
            return
        with self.watchdog.limit(300, "mounting again"):
            self.remount()
        for c, test, before in self.pictures:
            try:
                with self.watchdog.limit(c.seconds, f"{c.name} after a new mount"):
                    lines = differences(before, picture_tree(test.dir))
            except Exception as error:
                lines = [f"{type(error).__name__}: {error}"]
            if lines:
                self.score.failed += 1
                text = f"{c.group}.{c.name}: after a new mount: " + "; ".join(lines)
                self.score.failures.append(text)
                print(f"    FAILED {text}", flush=True)
            else:
                self.score.passed += 1
