"""The writers' processes: started, watched, stopped, and their folders checked."""
import mmap
import os
import signal
import sys
import traceback

from state import Wrong
from waiting import wait_until
from writers import DEAD_MOUNT, KINDS

PROGRESS_SECONDS = 90       # until every writer has got on after the server came back
STOP_SECONDS = 120

RUNNING, STOPPING, MOUNT_KILLED = 0, 1, 2
COUNTERS_FROM = 8           # the first word of the shared memory is the command, then one counter a writer

FINISHED, FAILED, LOST_MOUNT = 0, 1, 2      # exit codes of a writer


class Load:
    """Several writers below one folder of a mount.  Only one thread calls it."""

    def __init__(self, site, root, seed, kinds=None):
        self.site, self.root = site, root
        self.shared = memoryview(mmap.mmap(-1, 4096)).cast("Q")
        self.turn = 0
        self.processes = {}
        self.errors = site.path("writers.errors")
        self.writers = []
        for number, kind in enumerate(KINDS if kinds is None else kinds, 1):
            folder = os.path.join(root, f"{kind.__name__.lower()}-{number}")
            os.mkdir(folder)
            writer = kind(number, folder, site.path(f"writer-{number}.notes"), seed)
            writer.prepare()
            self.writers.append(writer)

    # -- processes

    def start(self):
        self.shared[0] = RUNNING
        for writer in self.writers:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os._exit(self._write(writer))
            self.site.keeper.process(pid)
            self.processes[pid] = writer
        self.turn += 1

    def _write(self, writer):
        """In the writer's process: until told to stop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            writer.begin(self.turn)
            while self.shared[0] == RUNNING:
                writer.turn()
                self.shared[COUNTERS_FROM + writer.number] += 1
            return FINISHED
        except OSError as error:
            if self.shared[0] == MOUNT_KILLED and error.errno in DEAD_MOUNT:
                return LOST_MOUNT
            self._complain(writer)
        except BaseException:
            self._complain(writer)
        return FAILED

    def _complain(self, writer):
        with open(self.errors, "a", encoding="utf-8") as f:
            f.write(f"{writer.name}: {traceback.format_exc()}\n")

    def counts(self):
        return [self.shared[COUNTERS_FROM + writer.number] for writer in self.writers]

    def steps(self):
        return sum(self.counts())

    def wait_progress(self, turns=1, seconds=PROGRESS_SECONDS):
        """Until every writer has done something; raises Wrong if one has failed or does not get on."""
        before = self.counts()

        def all_moved():
            self.check_alive()
            return all(now >= then + turns for now, then in zip(self.counts(), before))

        try:
            wait_until(all_moved, seconds, "every writer to get on")
        except Exception as error:
            if isinstance(error, Wrong):
                raise
            stuck = [w.name for w, now, then in zip(self.writers, self.counts(), before) if now < then + turns]
            raise Wrong(f"{error}; stuck: {', '.join(stuck)}") from None

    def check_alive(self):
        """No writer has ended while it should write."""
        for pid in list(self.processes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                writer = self.processes.pop(pid)
                raise Wrong(f"{writer.name} ended with {os.waitstatus_to_exitcode(status)}: {self._last_error()}")

    def _last_error(self):
        try:
            with open(self.errors, encoding="utf-8") as f:
                return f.read()[-1500:]
        except OSError:
            return "it said nothing"

    def stop(self):
        """Each finishes its turn.  Raises Wrong if one failed."""
        self._join(STOPPING, (FINISHED,))

    def mount_was_killed(self):
        """Call it just before the kill: from here on writers may lose their mount."""
        self.shared[0] = MOUNT_KILLED

    def join_after_kill(self):
        # A store into mapped memory cannot return an error: it gets SIGBUS.
        self._join(MOUNT_KILLED, (FINISHED, LOST_MOUNT, -signal.SIGBUS))

    def _join(self, command, allowed):
        self.shared[0] = command
        bad = []

        def all_gone():
            for pid in list(self.processes):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    writer, code = self.processes.pop(pid), os.waitstatus_to_exitcode(status)
                    if code not in allowed:
                        bad.append(f"{writer.name} ended with {code}")
            return not self.processes

        try:
            wait_until(all_gone, STOP_SECONDS, "the writers to end")
        except Exception as error:
            raise Wrong(f"{error}: {', '.join(w.name for w in self.processes.values())}") from None
        if bad:
            raise Wrong(f"{'; '.join(bad)}: {self._last_error()}")

    def abandon(self):
        """Whatever state they are in."""
        for pid in list(self.processes):
            os.kill(pid, signal.SIGKILL)
        self.shared[0] = STOPPING

    # -- what they left

    def check(self, exact):
        """Every folder against what its writer was told; raises Wrong.  Returns how many were checked."""
        problems = []
        for writer in self.writers:
            try:
                writer.check(exact)
            except (Wrong, OSError) as error:
                problems.append(f"{writer.name}: {error}")
        if problems:
            raise Wrong("; ".join(problems))
        return len(self.writers)
