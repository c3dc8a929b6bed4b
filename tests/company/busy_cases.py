"""Many processes on two mounts in one directory: nobody sees the past, nobody is kept waiting, whoever is stopped."""
import busy
from company import Company, Local
from crowd import LEASE_SECONDS, SLACK_SECONDS, Crowd
from suite import case
from waiting import TookTooLong, wait_until

STOP_MAX = 15


@case(seconds=90, chance=True)
def nobody_stalls_and_nobody_sees_the_past(test):
    """Creating, renaming, locking, truncating, changing modes, writing and mapping, all in one directory."""
    crowd = Crowd(test, Local(test.site.base, 2) if test.local else Company(test.site, 2))
    try:
        crowd.run(60 if test.long else 12)
        said, hiccups = crowd.end()
        crowd.judge(said, hiccups, busy.STALL_SECONDS)
        crowd.judge_log(said)
        crowd.judge_end()
    finally:
        crowd.close()


@case(seconds=150, only="epochfs", stored=True, chance=True)
def a_stopped_mount_delays_others_by_no_more_than_its_lease(test):
    """SIGSTOP for a few seconds, or for longer than the lease; then SIGCONT.  What was synced is there for everybody."""
    crowd = Crowd(test, Company(test.site, 2), careful=True)
    waits = [4, 13] if not test.long else [test.rng.uniform(0.5, STOP_MAX) for _ in range(12)]
    try:
        for number, seconds in enumerate(waits):
            crowd.run(1.5)
            victim = test.rng.randrange(2)
            others = [k for k in range(crowd.processes) if k % 2 != victim and k not in crowd.patient]
            before = [busy.steps(k) for k in others]
            mount = crowd.stop(victim, seconds)
            moved = [busy.steps(k) - b for k, b in zip(others, before)]
            if crowd.ended_early():
                break
            if seconds >= LEASE_SECONDS + SLACK_SECONDS:
                test.true(all(moved), f"stop {number}: while {mount.name} was stopped for {seconds:.1f} s the others went on: {moved} steps")
            before = [busy.steps(k) for k in range(crowd.processes)]
            try:
                wait_until(lambda: all(busy.steps(k) > b for k, b in enumerate(before)) or crowd.ended_early(),
                           LEASE_SECONDS + SLACK_SECONDS, f"everybody to go on after {mount.name} was continued (stop {number})")
            except TookTooLong:
                for daemon in (crowd.company.server, *crowd.company.mounts):
                    daemon.print_stacks()
                raise
        said, hiccups = crowd.end()
        crowd.judge(said, hiccups, LEASE_SECONDS + SLACK_SECONDS)
        crowd.judge_refusals(said)
        crowd.judge_log(said)
        crowd.judge_end()
    finally:
        crowd.close()
