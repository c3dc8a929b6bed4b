"""Concurrent operations on a few names by processes on several mounts, and whether some order explains what they saw.

In short rounds, each in a new folder: the processes do a few operations each at the same time, and then every mount
looks at everything.  The history of a round is checked by linear.py."""
import errno
import fcntl
import os
import random
import time

import linear
from company import Hands
from linear import Op
from locking import KINDS as LOCKS
from suite import case
from syscalls import AT_EMPTY_PATH, RENAME_EXCHANGE, linkat, renameat2
from waiting import TookTooLong

NAMES = ["a", "b", "c"]
TOKEN = 8               # bytes; an append adds one token, a number
MODES = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX}
EXPECTED = {errno.ENOENT, errno.EEXIST, errno.EAGAIN}
ROUND_SECONDS = 30

NAME_VERBS = {"create": 5, "open": 3, "unlink": 3, "rename": 5, "exchange": 1, "link": 3, "stat": 5}
FILE_VERBS = {"create": 2, "open": 4, "append": 8, "read": 5, "fstat": 3, "stat": 3, "rename": 1, "unlink": 0.5}
LOCK_VERBS = {"lock": 6, "unlock": 6, "wait": 1}
ALL_VERBS = {**NAME_VERBS, "append": 6, "read": 4, "fstat": 3, **LOCK_VERBS}


class Worker:
    """In a hand: does operations of one round and notes each with its times."""

    def __init__(self, process, folder, locks, seed):
        self.process, self.folder, self.lock_fds = process, folder, locks
        self.rng = random.Random(seed)
        self.files = []                 # (descriptor, inode)
        self.held = set()
        self.made = 0
        self.history = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def do(self, verb, *args):
        """Does it and notes it.  What it does in the file system is one of the methods below."""
        function = getattr(self, f"do_{verb}")
        noted = args
        if verb in ("append", "read", "fstat", "link"):
            noted = (args[0][1], *args[1:])
        called = time.monotonic_ns()
        try:
            result = function(*args)
        except OSError as error:
            result = [errno.errorcode.get(error.errno, str(error.errno))]
        returned = time.monotonic_ns()
        self.history.append(Op(self.process, verb, list(noted), result, called, returned))
        return result

    def keep(self, fd):
        inode = os.fstat(fd).st_ino
        self.files.append((fd, inode))
        return ["ok", inode]

    def do_create(self, name):
        return self.keep(os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644))

    def do_open(self, name):
        return self.keep(os.open(self.path(name), os.O_RDWR | os.O_APPEND))

    def do_unlink(self, name):
        os.unlink(self.path(name))
        return ["ok"]

    def do_rename(self, old, new):
        os.rename(self.path(old), self.path(new))
        return ["ok"]

    def do_exchange(self, old, new):
        renameat2(self.path(old), self.path(new), RENAME_EXCHANGE)
        return ["ok"]

    def do_link(self, file, new):
        linkat("", self.path(new), AT_EMPTY_PATH, olddir=file[0])
        return ["ok"]

    def do_stat(self, name):
        st = os.stat(self.path(name))
        return ["ok", st.st_ino, st.st_nlink, st.st_size / TOKEN]

    def do_fstat(self, file):
        st = os.fstat(file[0])
        return ["ok", st.st_nlink, st.st_size / TOKEN]

    def do_append(self, file, token):
        return ["ok"] if os.write(file[0], token.to_bytes(TOKEN, "little")) == TOKEN else ["short"]

    def do_read(self, file):
        data = os.pread(file[0], 4096, 0)
        if len(data) % TOKEN:
            return ["torn", len(data)]
        return ["ok", [int.from_bytes(data[i:i + TOKEN], "little") for i in range(0, len(data), TOKEN)]]

    def do_list(self):
        return ["ok", sorted(os.listdir(self.folder))]

    def do_lock(self, what, mode, wait=False):
        kind, byte = what.split()
        LOCKS[kind](self.lock_fds[what], MODES[mode], *([] if kind == "flock" else [int(byte)]), wait=wait)
        self.held.add(what)
        return ["ok"]

    def do_wait(self, what, mode):
        return self.do_lock(what, mode, True)

    def do_unlock(self, what):
        kind, byte = what.split()
        LOCKS[kind](self.lock_fds[what], fcntl.LOCK_UN, *([] if kind == "flock" else [int(byte)]))
        self.held.discard(what)
        return ["ok"]

    def one(self, verbs):
        """A random operation that makes sense now."""
        verb = self.rng.choices(list(verbs), list(verbs.values()))[0]
        if verb in ("rename", "exchange"):
            self.do(verb, *self.rng.sample(NAMES, 2))
        elif verb in ("link", "append", "read", "fstat"):
            if not self.files:
                self.do("open", self.rng.choice(NAMES))
                return
            file = self.rng.choice(self.files)
            if verb == "append":
                self.made += 1
                self.do(verb, file, self.process * 1000 + self.made)
            else:
                self.do(verb, file, *([self.rng.choice(NAMES)] if verb == "link" else []))
        elif verb in ("lock", "wait"):
            free = [w for w in self.lock_fds if w not in self.held]
            if free and not (verb == "wait" and self.held):     # who holds one does not wait: nothing waits in a circle
                self.do(verb, self.rng.choice(free), self.rng.choice(list(MODES)))
        elif verb == "unlock":
            if self.held:
                self.do(verb, self.rng.choice(sorted(self.held)))
        else:
            self.do(verb, self.rng.choice(NAMES))

    def let_go(self):
        for what in sorted(self.held):
            self.do("unlock", what)

    def close(self):
        for fd, _ in self.files:
            os.close(fd)
        self.files = []

    def look(self):
        """Everything there is, when nothing else is under way."""
        names = self.do("list")[1]
        for name in names:
            self.do("stat", name)
            if self.do("open", name)[0] == "ok":
                self.do("read", self.files[-1])


_lock_fds = {}


def open_locks(folder, whats):
    """In a hand, once: a descriptor for each lock."""
    for what in whats:
        kind, _ = what.split()
        path = os.path.join(folder, "locks-" + ("record" if kind != "flock" else what.replace(" ", "-")))
        _lock_fds[what] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def play(process, folder, seed, verbs, count, start):
    """In a hand: one round."""
    worker = Worker(process, folder, _lock_fds, seed)
    while time.monotonic() < start:
        pass
    for _ in range(count):
        worker.one(verbs)
    worker.let_go()
    worker.close()
    return worker.history


def look(process, folder):
    worker = Worker(process, folder, {}, 0)
    worker.look()
    worker.close()
    return worker.history


def rounds(test, verbs, mounts, processes, seconds, locks=()):
    """Plays rounds for so long; the first that no order explains ends it."""
    # A record lock goes when its process closes any descriptor of the file, so it is opened once.
    folders = test.folders[:mounts]
    took_apart = operations = steps = number = undecided = 0
    end = time.monotonic() + seconds * (6 if test.long else 1)
    with Hands(test.site, *[f"process-{k}" for k in range(processes)]) as hands:
        for k, hand in enumerate(hands):
            hand.call(open_locks, folders[k % mounts], locks)
        while time.monotonic() < end:
            number += 1
            name = f"round-{number}"
            os.mkdir(os.path.join(folders[test.rng.randrange(mounts)], name))
            places = [os.path.join(folders[k % mounts], name) for k in range(processes)]
            count = test.rng.randrange(3, 9)
            history = hands[0].call(play, 90, places[0], f"{test.seed} {number} before", {"create": 1}, test.rng.randrange(3), 0)
            start = time.monotonic() + 0.002
            for k, hand in enumerate(hands):
                hand.start(play, k, places[k], f"{test.seed} {number} {k}", verbs, count, start)
            for hand in hands:
                history += finish(test, hand)
            for k in range(mounts):
                hands[k].start(look, 91 + k, places[k])
                history += finish(test, hands[k])
            operations += len(history)
            try:
                good, search, apart = linear.check(history)
            except linear.Undecided:
                undecided += 1
                continue
            steps += search.nodes
            took_apart += apart
            if not good:
                explain(test, number, history, search, mounts)
                break
            test.score.passed += 1
    test.say(f"{number} rounds, {operations} operations, {steps} steps of the search, {took_apart} with rename or stat taken apart, "
             f"{undecided} undecided")
    test.true(undecided * 20 <= number, f"nearly all rounds were decided ({undecided} of {number} were not)")


def finish(test, hand):
    """What a hand says of its round; where everything stands if it says nothing."""
    try:
        return hand.finish(ROUND_SECONDS)
    except TookTooLong:
        test.company.print_stacks()
        raise


def explain(test, number, history, search, mounts):
    test.say(f"round {number} (process k is on mount {'abcd'[:mounts]}[k % {mounts}]; 90 was before, 91 + k looked at the end on mount k; "
             "times in microseconds; ! has no place in the longest order found):")
    for line in linear.lines(history, search):
        print(f"   {line}")
    stuck = [history[i] for i in range(len(history)) if i not in set(search.order)]
    first = min(stuck, key=lambda op: op.returned)
    test.true(False, f"round {number}: {len(history)} operations are linearizable; {len(search.order)} could be ordered, first left over: "
                     f"{linear.line(first, min(op.called for op in history))}")


RECORD_LOCKS = ["fcntl 0", "fcntl 1", "OFD 7"]
FLOCKS = ["flock 0", "flock 1"]


@case(seconds=60)
def names_on_two_mounts(test):
    rounds(test, NAME_VERBS, 2, 4, 5)


@case(seconds=60, chance=True)
def names_on_four_mounts(test):
    rounds(test, NAME_VERBS, 4, 4, 5)


@case(seconds=60)
def appending_and_reading_on_two_mounts(test):
    rounds(test, FILE_VERBS, 2, 4, 5)


@case(seconds=60, chance=True)
def appending_and_reading_on_four_mounts(test):
    rounds(test, FILE_VERBS, 4, 4, 4)


@case(seconds=60)
def record_locks_on_four_mounts(test):
    rounds(test, LOCK_VERBS, 4, 4, 3, RECORD_LOCKS)


@case(seconds=60)
def flocks_on_four_mounts(test):
    rounds(test, LOCK_VERBS, 4, 4, 3, FLOCKS)


@case(seconds=60)
def everything_on_three_mounts(test):
    rounds(test, ALL_VERBS, 3, 5, 6, RECORD_LOCKS[:2] + FLOCKS[:1])
