"""Plays operations on the model and on a real file system, and compares after each.

All choices come from one seeded generator and depend on the model only, so that a seed always gives
the same operations.  How things are looked at comes from a second one.

With several mounts each operation is done on any of them (what is open stays where it was opened), and looked at
afterwards on any of them."""
import collections
import errno
import os
import random
import time

import compare
from attribute_operations import AttributeOperations
from compare import NOW, Differs
from content_operations import ContentOperations
from model import Model, path_of
from name_operations import NameOperations
from upset_operations import UpsetOperations
from waiting import wait_until

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", "i j", ".k", "\u00fcml\u00e4ut-\u6587", "n" * 255]
OBJECTS_MAX = 60            # beyond it, names go as often as they come
HANDLES_MAX = 8
STALE_MAX = 3               # and one more for each 1,000 operations
STALE_SECONDS = 5           # a program that is in the way has been preempted, on a busy machine


class Failed(Exception):
    """What went wrong, with the operations that led to it."""


class Handle:
    """append: with O_APPEND; reads: for reading only."""

    def __init__(self, fd, inode, append, reads):
        self.fd, self.inode, self.append, self.reads = fd, inode, append, reads


class Player(NameOperations, ContentOperations, AttributeOperations, UpsetOperations):
    def __init__(self, target, seed, block, dense_max, upset_rate=0.02, trace=False):
        self.target, self.block, self.dense_max, self.upset_rate, self.trace = target, block, dense_max, upset_rate, trace
        self.rng = random.Random(seed)
        self.eyes = random.Random(f"{seed} eyes")
        self.places = random.Random(f"{seed} places")
        self.model = Model()
        self.handles = []
        self.log = collections.deque(maxlen=40)
        self.counts = collections.Counter()
        self.checks = 0
        self.number = 0
        self.movers = collections.defaultdict(set)      # of a directory: the roots by which it was moved
        self.stale = 0
        self.touched = {}
        self.table = {}
        for kind in Player.__bases__:
            self.table.update(kind.WEIGHTS)
        self.touch(self.model.root)
        self._look_at_touched(time.time_ns())

    def play(self, operations, tree_every=400):
        names, weights = zip(*self.table.items())
        try:
            for self.number in range(1, operations + 1):
                self._play_one(self._choose(names, weights))
                if self.number % tree_every == 0:
                    self.check_tree()
            self.say("compare everything, mount again, compare everything")
            self.check_tree()
            if hasattr(self.target, "remount"):
                self.upset_remount()
                self.check_tree()           # by what caches have kept
        except (Differs, OSError, AssertionError) as error:
            text = str(error) if isinstance(error, Differs) else f"{type(error).__name__}: {error}"
            raise Failed(f"operation {self.number}: {text}") from error

    def _choose(self, names, weights):
        if self.rng.random() < self.upset_rate:
            return f"upset_{self.rng.choice(self.target.upsets)}"
        if len(self.model.alive) > OBJECTS_MAX and self.rng.random() < 0.5:
            return self.rng.choice(["unlink", "rmdir"])
        return self.rng.choices(names, weights)[0]

    def _play_one(self, name):
        self.touched = {}
        self.counts[name] += 1
        self._go_somewhere()
        began_ns = time.time_ns()
        getattr(self, name)()
        self._look_at_touched(began_ns)

    def _go_somewhere(self):
        """To any of the mounts."""
        if len(self.target.roots) > 1:
            self.target.root = self.places.choice(self.target.roots)

    def _here(self):
        """The letter of the mount in use, if there are several."""
        return f"{'abcdefgh'[self.target.roots.index(self.target.root)]}:" if len(self.target.roots) > 1 else ""

    # -- what an operation says and does

    def say(self, text):
        self.log.append(f"{self.number:6d}  {self._here()}{' ' if self._here() else ''}{text}")
        if self.trace:
            print(self.log[-1], flush=True)

    def touch(self, inode, **policy):
        """Has it compared after the operation; policy says what happened to its times."""
        mine = self.touched.setdefault(inode, {})
        for field, what in policy.items():
            if mine.get(field) != NOW:
                mine[field] = what

    def changed(self, *inodes):
        """Content or names changed: both times are now."""
        for inode in inodes:
            self.touch(inode, mtime=NOW, ctime=NOW)

    def call(self, function, *args, **options):
        """Again if it is ESTALE: a path through a directory that another mount has moved may be, while others look at that, too
        (docs/consistency.md, Limits).  Nothing else may be, and that is rare, and does not last."""
        results = []

        def works():
            try:
                results.append(function(*args, **options))
            except OSError as error:
                if error.errno != errno.ESTALE or not any(self._was_moved_elsewhere(path) for path in args if isinstance(path, str)):
                    raise
            return results

        if not works():
            self.stale += 1
            if self.stale > STALE_MAX + self.number // 1000:
                raise Differs(f"{function.__name__}: ESTALE, now {self.stale} times")
            self.say("ESTALE: again")
            wait_until(works, STALE_SECONDS, f"{function.__name__} not to be ESTALE")
        return results[0]

    def _was_moved_elsewhere(self, path):
        """Whether another mount has moved a directory that is on this path of the mount in use."""
        if not path.startswith(self.target.root + "/"):
            return False
        inode = self.model.root
        for name in path[len(self.target.root) + 1:].split("/"):
            inode = inode.children.get(name) if inode.is_directory else None
            if inode is None:
                return False
            if self.movers[inode] - {self.target.root}:
                return True
        return False

    def expect(self, wanted, function, *args, **options):
        """The call must fail with this errno, or work if it is 0."""
        try:
            result = self.call(function, *args, **options)
        except OSError as error:
            if error.errno != wanted:
                want = errno.errorcode[wanted] if wanted else "success"
                raise Differs(f"{function.__name__}: expected {want}, got {errno.errorcode.get(error.errno)}") from error
            return None
        if wanted:
            raise Differs(f"{function.__name__}: expected {errno.errorcode[wanted]}, but it worked")
        return result

    # -- choices

    def chance(self, probability):
        return self.rng.random() < probability

    def some_directory(self):
        return self.rng.choice(self.model.directories())

    def some_entry(self, directory, taken=0.5):
        """A name in it: one that is there, or any."""
        if directory.children and self.chance(taken):
            return self.rng.choice(sorted(directory.children))
        return self.rng.choice(NAMES)

    def some_named(self, test=None):
        """Something that has a name and passes the test, or None."""
        found = [i for i in self.model.alive if i.names and (test is None or test(i))]
        return self.rng.choice(found) if found else None

    def path(self, inode, name_index=0):
        below = path_of(inode, name_index)
        return os.path.join(self.target.root, below) if below else self.target.root

    def any_path(self, inode):
        return self.path(inode, self.rng.randrange(max(1, len(inode.names))))

    def entry(self, directory, name):
        return os.path.join(self.path(directory), name)

    def brief(self, inode):
        below = path_of(inode)
        return f"<{inode.number}, no name>" if below is None else (below.replace("n" * 255, "nnn...") or ".")

    def place_of(self, fd):
        """The letter of the mount that a descriptor was opened on."""
        target = os.readlink(f"/proc/self/fd/{fd}")
        return next(("abcdefgh"[k] for k, root in enumerate(self.target.roots) if target.startswith(root)), "?")

    # -- handles

    def hold(self, fd, inode, append=False, reads=False):
        """Keeps it open for later operations; the oldest goes when there are too many."""
        if len(self.handles) >= HANDLES_MAX:
            self.let_go(self.rng.choice(self.handles))
        self.handles.append(Handle(fd, inode, append, reads))

    def let_go(self, handle):
        self.handles.remove(handle)
        os.close(handle.fd)

    def let_all_go(self):
        while self.handles:
            self.let_go(self.handles[0])

    # -- comparing

    def _look_at_touched(self, began_ns):
        for inode, policy in self.touched.items():
            self.check_inode(inode, began_ns, policy)

    def _way_to(self, inode):
        """(path or /proc path of a handle, whether it was a name); None if nothing leads there any more."""
        handles = [h for h in self.handles if h.inode is inode]
        if handles and (not inode.names or self.eyes.random() < 0.3):
            return self.eyes.choice(handles).fd, False
        if inode.names or inode is self.model.root:
            return self.path(inode, self.eyes.randrange(max(1, len(inode.names)))), True
        return None, False

    def check_inode(self, inode, began_ns=0, policy=None, reader=None):
        self._go_somewhere()
        way, named = self._way_to(inode)
        if way is None:
            return
        self.checks += 1
        where = (self._here() if named or not self._here() else f"open on {self.place_of(way)}:") + self.brief(inode)
        st = self.call(os.lstat, way) if named else os.fstat(way)
        compare.check_attributes(where, st, inode, began_ns, policy or {}, self.target.atime)
        if inode.is_link:
            target = self.call(os.readlink, way)
            if target != inode.target:
                raise Differs(f"{where}: target: expected {inode.target!r}, got {target!r}")
            compare.check_xattrs(where, way, inode)
        elif inode.is_directory:
            compare.check_listing(where, way, inode)
            compare.check_xattrs(where, way, inode)
        elif inode.is_file:
            fd = self.call(os.open, way, os.O_RDONLY) if named else way
            try:
                compare.check_xattrs(where, fd, inode)
                compare.check_content(where, fd, inode.content, self.eyes, reader)
            finally:
                if named:
                    os.close(fd)

    def check_tree(self):
        """Everything there is, and the handles without a name."""
        for inode in self.model.alive:
            self.check_inode(inode)
        for handle in self.handles:
            self.check_inode(handle.inode)
