"""A crowd of processes in one directory over several mounts (busy.py): started, stopped, judged."""
import os
import signal
import time

import busy
from company import Hands, take
from waiting import TookTooLong, wait_until

LEASE_SECONDS = 10
SLACK_SECONDS = 3


class Crowd:
    """Process k is on mount k % mounts.  careful: as in busy.Actor; kinds: those of busy.KINDS.  All are patient, but of a careful
    crowd only one on each mount, the last: whoever waits for what a stopped mount has locked does nothing else."""

    def __init__(self, test, company, careful=False, processes=6, kinds=None):
        self.test, self.company, self.processes = test, company, processes
        self.mounts = len(company.points)
        self.patient = range(processes - self.mounts if careful else 0, processes)
        self.stops = []                 # (mount, began, ended)
        self.lossy = set()              # mounts that had to refuse something
        folders = [os.path.join(point, "busy") for point in self.company.points]
        os.mkdir(folders[0])
        busy.prepare()
        self.things = busy.things(processes, kinds)
        busy.set_up(folders[0], self.things)
        self.folders = [folders[k % self.mounts] for k in range(processes)]
        self.hands = Hands(test.site, *[self.name(k) for k in range(processes)], "pulse").all
        for k, hand in enumerate(self.hands[:-1]):
            hand.start(busy.act, k, self.folders[k], k % self.mounts, self.things, test.seed, careful, k in self.patient)
        self.hands[-1].start(busy.pulse, test.site.base)

    def name(self, process):
        return f"process {process} on {'abcdefgh'[process % self.mounts]}"

    def run(self, seconds):
        """Until the time is over or one has found something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(hand.done() for hand in self.hands):
            time.sleep(0.02)

    def end(self, seconds=LEASE_SECONDS + SLACK_SECONDS + 15):
        """(what each process says, hiccups of the machine)."""
        busy.stop_all()
        said = []
        try:
            limit = time.monotonic() + seconds
            for hand in self.hands:
                said.append(hand.finish(max(0.1, limit - time.monotonic())))
        except TookTooLong:
            self.company.print_stacks()
            raise
        return said[:-1], said[-1]

    def close(self):
        for mount in self.company.mounts:
            if mount.alive():
                os.kill(mount.process.pid, signal.SIGCONT)
        for hand in self.hands:
            hand.end()

    # -- judging

    def stop(self, victim, seconds):
        """Stops a mount for so long, or until somebody has found something."""
        mount = self.company.mounts[victim]
        began = time.monotonic()
        busy.note_stop(victim)
        os.kill(mount.process.pid, signal.SIGSTOP)
        self.run(seconds)
        os.kill(mount.process.pid, signal.SIGCONT)
        busy.note_stop(victim)
        self.stops.append((victim, began, time.monotonic()))
        return mount

    def wait_progress(self, seconds):
        """Until everybody has done something, or somebody has found something."""
        before = [busy.steps(k) for k in range(self.processes)]
        wait_until(lambda: self.ended_early() or all(busy.steps(k) > b for k, b in enumerate(before)), seconds, "everybody to get on")

    def ended_early(self):
        return any(hand.done() for hand in self.hands)

    def judge(self, said, hiccups, limit):
        """limit: how long a step may take, not counting how long its own mount was stopped (or any, if it waited for a lock), nor
        the machine's hiccups."""
        test = self.test
        problems = [s["problem"] for s in said if s["problem"]]
        test.true(not problems, f"nothing stale and no error: {'; '.join(problems)}")
        total, slowest = 0, {}
        for k, s in enumerate(said):
            total += sum(s["counts"].values())
            for what, (took, began) in s["slowest"].items():
                slowest[what] = max(slowest.get(what, (0, 0)), (took, k))
            for what, began, ended in s["stalls"]:
                beyond = busy.excused(began, ended, hiccups)
                stopped = sum(max(0, min(ended, e) - max(began, b)) for victim, b, e in self.stops
                              if victim == k % self.mounts or what == busy.WAIT)
                if beyond - stopped > limit:
                    test.true(False, f"{self.name(k)}: {what} took {ended - began:.2f} s ({ended - began - beyond:.2f} s of them "
                                     f"the machine's own, {stopped:.2f} s a mount was stopped), {limit} s are allowed")
        test.true(total > 0, "something was done")
        worst = sorted(slowest.items(), key=lambda item: -item[1][0])[:5]
        test.say(f"{total} steps; slowest: " + ", ".join(f"{what} {took * 1000:.0f} ms (process {k})" for what, (took, k) in worst)
                 + f"; the machine itself hesitated for up to {max((e - b for b, e in hiccups), default=0) * 1000:.0f} ms")

    def judge_refusals(self, said):
        """Only a mount that was stopped for longer than its lease may have lost something, and says so."""
        away = {victim: b for victim, b, e in reversed(self.stops) if e - b > LEASE_SECONDS - SLACK_SECONDS}
        refused = [(k, *r) for k, s in enumerate(said) for r in s["refused"]]
        self.lossy = {k % self.mounts for k, *_ in refused}
        for k, what, number, when in refused:
            self.test.true(away.get(k % self.mounts, when + 1) < when, f"{self.name(k)}: {what} failed with {number} though its mount was not away "
                                                                      "for as long as a lease")
        self.test.say(f"stopped for {', '.join(f'{e - b:.1f}' for _, b, e in self.stops)} s; refused afterwards: "
                      + (", ".join(f"{what} of process {k}: {number}" for k, what, number, _ in refused[:6]) or "nothing"))

    def judge_log(self, said):
        """Every record that was acknowledged stands once, in the order of its writer, on both mounts."""
        for folder in self.folders[:self.mounts]:
            records = [r + b">" for r in take(os.path.join(folder, "log")).split(b">")[:-1]]
            for k, s in enumerate(said):
                mine = [r for r in records if r.startswith(b"<%d " % k)]
                missing = sorted(set(s["kept"]) - set(mine))
                self.test.true(not missing, f"process {k}: {len(missing)} of {len(s['kept'])} acknowledged records are missing in the log read "
                                            f"on {self.company.where(folder + '/log')}: {missing[:5]}")
                self.test.true(len(set(mine)) == len(mine), f"process {k}: no record stands twice")
                strange = [r for r in records if r.count(b"<") != 1 or not r.startswith(b"<")]
                self.test.true(not strange, f"every record is whole: {strange[:3]}")

    def judge_end(self):
        """At rest each thing is as it was last made, on both mounts and from the store."""
        for folder in self.folders[:self.mounts]:
            actor = busy.Actor(99, folder, self.folders.index(folder), self.things, 0, True, False)
            try:
                for thing in self.things:
                    thing.begun = max(thing.begun, thing.done)
                    if thing.kind != "counter":
                        actor.look(thing)
                        self.test.score.passed += 1
            finally:
                actor.close()
        self.close()
        lossy = {f"{self.company.mounts[m].name} ended with 1" for m in self.lossy}     # which it must tell in the end, too
        self.test.equal([p for p in self.company.problems() if p not in lossy], [], "mounts and fsck at the end")
