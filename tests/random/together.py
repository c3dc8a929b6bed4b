"""Several players at once, each in a folder of its own with a model of its own.

What one does must not show in what another sees, though they share packs, uploads, caches and the
server, which is killed and restarted meanwhile.  Each player's operations are those of its seed; how
they meet is the machine's doing."""
import json
import os
import random
import select
import signal
import sys
import time

from compare import Differs
from player import Failed, Player

STEP_SECONDS = 600
UPSETS = ["drop_caches", "drop_caches", "kill_server", "restart_server", "gc", "fsck"]
UPSET_EVERY = (0.3, 2.0)        # seconds


class Part:
    """A player's share of the target: a folder; nothing can be done to the rest from here."""

    upsets = []

    def __init__(self, target, number):
        self.epochfs, self.xattr_max, self.atime = target.epochfs, target.xattr_max, target.atime
        self.roots = [os.path.join(root, f"player-{number}") for root in target.roots]
        self.root = self.roots[0]
        os.mkdir(self.root)
        os.chmod(self.root, 0o755)


class Child:
    """A player in a process of its own.  It says what it found, one line of JSON for each step."""

    def __init__(self, number, part, seed, config, operations, trace):
        self.number = number
        self.reader, writer = os.pipe()
        go_on, self.go_on = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.close(self.reader)
            os.close(self.go_on)
            code = 1
            try:
                code = _play(writer, go_on, part, seed, config, operations, trace)
            finally:
                os._exit(code)
        os.close(writer)
        os.close(go_on)

    def answer(self):
        """What it says next; None if it has nothing to say yet."""
        if not select.select([self.reader], [], [], 0)[0]:
            return None
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self.reader, 65536)
            if not part:
                return {"problem": "it ended without a word", "log": [], "operations": 0, "checks": 0}
            line += part
        return json.loads(line)

    def proceed(self):
        os.write(self.go_on, b"\n")

    def end(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        os.close(self.reader)
        os.close(self.go_on)


def _play(writer, go_on, part, seed, config, operations, trace):
    """In the child: play, say so, wait for the new mount, compare again."""
    player = Player(part, seed, config.block, config.dense_max, 0, trace)

    def tell(problem):
        text = json.dumps({"problem": problem, "log": list(player.log), "operations": player.number, "checks": player.checks,
                           "stale": player.stale})
        data = text.encode() + b"\n"
        while data:
            data = data[os.write(writer, data):]

    try:
        player.play(operations)
        player.let_all_go()
        tell(None)
        os.read(go_on, 1)
        player.check_tree()
        tell(None)
        return 0
    except (Failed, Differs, OSError) as error:
        tell(str(error))
        return 1


class Together:
    """The counterpart of one Player: play() plays all of them.  number, checks, stale and log as there."""

    def __init__(self, target, seed, config, trace, keeper):
        self.target, self.seed, self.config, self.trace, self.keeper = target, seed, config, trace, keeper
        self.rng = random.Random(f"{seed} upsets")
        self.number, self.checks, self.stale, self.log = 0, 0, 0, []

    def play(self, operations):
        share = operations // self.config.players
        children = []
        try:
            for k in range(self.config.players):
                children.append(Child(k, Part(self.target, k), f"{self.seed} {k}", self.config, share, self.trace))
                self.keeper.process(children[-1].pid)
            self._collect(children, True)
            self.target.remount()
            for child in children:
                child.proceed()
            self._collect(children, False)
        finally:
            for child in children:
                child.end()

    def let_all_go(self):
        """The files are the children's, and they are gone."""

    def _collect(self, children, upset):
        """Until each has said that its step is done; meanwhile the target has no rest."""
        waiting, next_upset = list(children), time.monotonic()
        end = time.monotonic() + STEP_SECONDS
        while waiting:
            select.select([c.reader for c in waiting], [], [], 0.05)
            for child in list(waiting):
                said = child.answer()
                if said:
                    waiting.remove(child)
                    self._take(child, said, upset)
            if time.monotonic() > end:
                raise Failed(f"players {[c.number for c in waiting]} do not end")
            if upset and waiting and time.monotonic() > next_upset:
                name = self.rng.choice(UPSETS)
                if self.trace:
                    print(f"        {name}", flush=True)
                getattr(self.target, name)()
                next_upset = time.monotonic() + self.rng.uniform(*UPSET_EVERY)

    def _take(self, child, said, counts):
        self.checks = self.checks + said["checks"] if counts else self.checks
        self.number = self.number + said["operations"] if counts else self.number
        self.stale = self.stale + said["stale"] if counts else self.stale
        if said["problem"]:
            self.log = said["log"]
            raise Failed(f"player {child.number}: {said['problem']}")
