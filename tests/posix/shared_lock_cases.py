"""Locks over two mounts of one volume."""
import contextlib
import errno as E
import fcntl
import os
import signal

from actor import Actor
from suite import case
from waiting import wait_until

EX, SH, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN
W, R, U = fcntl.F_WRLCK, fcntl.F_RDLCK, fcntl.F_UNLCK


class Two:
    """A volume mounted twice, with a file in it and a process at each."""

    def __init__(self, t):
        server = t.site.main_mount.server
        name = t.case.name.replace("_", "-")[:40].strip("-")
        server.volume(name)
        self.server = server
        self.mounts = [server.mount(name, name=f"{name}-{i}") for i in (1, 2)]
        for file in ("f", "g"):
            with open(os.path.join(self.mounts[0].point, file), "wb") as f:
                f.write(b"x" * 100)
                os.fsync(f.fileno())
        self.here, self.there = self.path(0), self.path(1)
        self.actors = []

    def path(self, mount, name="f"):
        return os.path.join(self.mounts[mount].point, name)

    def actor(self, path=None):
        """(a process, its descriptor)"""
        actor = Actor()
        self.actors.append(actor)
        return actor, actor.open(path) if path else None

    def close(self):
        for actor in self.actors:
            actor.leave(signal.SIGKILL)
        for mount in self.mounts:
            if mount.alive():
                mount.umount()


@contextlib.contextmanager
def two_mounts(t):
    two = Two(t)
    try:
        yield two
    finally:
        two.close()


def shared_case(**options):
    return case(only="epochfs", lasting=False, **options)


@shared_case()
def record_locks_exclude_across_mounts(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        t.equal(a.record(fa, EX, 10, 20), 0)
        t.equal(b.record(fb, EX, 0, 10), 0)
        t.equal(b.record(fb, SH, 29, 1), E.EAGAIN)
        t.equal(b.record(fb, EX, 30, 0), 0)
        t.equal(a.record(fa, SH, 10, 20), 0)
        t.equal(b.record(fb, SH, 15, 5), 0)
        t.equal(a.record(fa, EX, 15, 1), E.EAGAIN)
        t.equal(a.record(fa, UN), 0)
        t.equal(b.record(fb, EX), 0)


@shared_case()
def flocks_exclude_across_mounts_and_change_their_type(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        t.equal(a.flock(fa, EX), 0)
        t.equal(b.flock(fb, SH), E.EAGAIN)
        t.equal(a.flock(fa, SH), 0)
        t.equal(b.flock(fb, SH), 0)
        t.equal(a.flock(fa, EX), E.EAGAIN)
        t.equal(b.flock(fb, EX), 0, "who failed to change the type has lost what it had")
        t.equal(b.flock(fb, UN), 0)
        t.equal(a.flock(fa, EX), 0)
        t.equal(b.record(fb, EX), 0, "record locks are another matter")


@shared_case()
def ofd_locks_exclude_across_mounts_until_the_last_close(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        t.equal(a.ofd(fa, W), 0)
        t.equal(b.ofd(fb, R), E.EAGAIN)
        copy = a.dup(fa)
        a.close(fa)
        t.equal(b.ofd(fb, R), E.EAGAIN, "a copy is open")
        b.begin("ofd", fb, R, block=True)
        t.true(b.waits(), "it waits")
        a.close(copy)
        t.equal(b.end(), 0)


@shared_case()
def a_wait_ends_when_the_lock_is_released_on_the_other_mount(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        for name in ("record", "flock"):
            for _ in range(20):
                t.equal(getattr(a, name)(fa, EX), 0)
                b.begin(name, fb, EX, block=True)
                t.true(b.waits(), "it waits")
                t.equal(getattr(a, name)(fa, UN), 0)
                t.equal(b.end(), 0, "it got it")
                t.equal(getattr(a, name)(fa, EX), E.EAGAIN, "nobody else has")
                t.equal(getattr(b, name)(fb, UN), 0)


@shared_case()
def many_waiting_processes_take_turns(t):
    """More of them than the mount has threads: nobody holds one while waiting."""
    with two_mounts(t) as m:
        a, fa = m.actor(m.here)
        t.equal(a.record(fa, EX), 0)
        waiting = [m.actor(m.path(i % 2)) for i in range(100)]
        for b, fb in waiting:
            b.begin("record", fb, EX, block=True)
        for b, fb in waiting:
            t.true(b.waits(), "it waits")
        t.equal(a.record(fa, UN), 0)
        left = dict(waiting)
        while left:
            got = wait_until(lambda: [b for b in left if b.has_ended()], 20, "the next one to get the lock")
            t.equal(len(got), 1, "one at a time")
            t.equal(got[0].end(), 0)
            t.equal(got[0].record(left.pop(got[0]), UN), 0)


@shared_case()
def a_circle_of_waits_across_mounts_is_a_deadlock(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        ga, gb = a.open(m.path(0, "g")), b.open(m.path(1, "g"))
        t.equal(a.record(fa, EX), 0)
        t.equal(b.record(gb, EX), 0)
        a.begin("record", ga, EX, block=True)
        b.begin("record", fb, EX, block=True)
        refused, mine, waiting = wait_until(lambda: (a, fa, b) if a.has_ended() else (b, gb, a) if b.has_ended() else None, 10,
                                            "one of them to be refused")
        t.equal(refused.end(), E.EDEADLK)
        t.true(waiting.waits(), "the other one waits")
        t.equal(refused.record(mine, UN), 0)
        t.equal(waiting.end(), 0)


@shared_case()
def getlk_finds_the_lock_of_another_mount(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb), (c, fc) = m.actor(m.here), m.actor(m.there), m.actor(m.here)
        t.equal(b.getlk(fb)[0], U)
        t.equal(a.record(fa, EX, 20, 10), 0)
        t.equal(b.getlk(fb), (W, 20, 10, 0), "who it is, is not known here")
        t.equal(c.getlk(fc), (W, 20, 10, a.pid))
        t.equal(b.getlk(fb, R, 0, 20)[0], U)
        t.equal(a.record(fa, SH, 20, 0), 0)
        t.equal(b.getlk(fb), (R, 20, 0, 0))


@shared_case()
def closing_exiting_and_dying_release_locks(t):
    with two_mounts(t) as m:
        b, fb = m.actor(m.there)
        for how in ("close", "close another", "exit", "kill"):
            a, fa = m.actor(m.here)
            other = a.open(m.here, os.O_RDONLY) if how == "close another" else None
            t.equal(a.record(fa, EX), 0, how)
            t.equal(b.record(fb, EX), E.EAGAIN, how)
            if how == "close":
                a.close(fa)
            elif how == "close another":
                a.close(other)
            else:
                a.leave(signal.SIGKILL if how != "exit" else None)
            t.equal(b.record(fb, EX), 0, how)
            t.equal(b.record(fb, UN), 0)
            a.leave()
        for name, kind in (("flock", EX), ("ofd", W)):
            a, fa = m.actor(m.here)
            t.equal(getattr(a, name)(fa, kind), 0)
            b.begin(name, fb, kind, block=True)
            t.true(b.waits(), "it waits")
            a.leave(signal.SIGKILL)
            t.equal(b.end(), 0, name)
            b.close(fb)
            fb = b.open(m.there)


@shared_case()
def a_lock_set_through_a_file_opened_for_reading_goes_with_it(t):
    """Such a file is opened without asking for word of its closing."""
    with two_mounts(t) as m:
        (a, _), (b, fb) = m.actor(), m.actor(m.there)
        for flags in (os.O_RDONLY, os.O_RDONLY):
            fa = a.open(m.here, flags)
            t.equal(a.record(fa, SH), 0)
            t.equal(b.record(fb, EX), E.EAGAIN)
            b.begin("record", fb, EX, block=True)
            t.true(b.waits(), "it waits")
            a.close(fa)
            t.equal(b.end(), 0)
            t.equal(b.record(fb, UN), 0)


@shared_case()
def a_signal_ends_a_wait_and_the_lock_is_not_taken_afterwards(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb), (c, fc) = m.actor(m.here), m.actor(m.there), m.actor(m.here)
        b.on_signal(signal.SIGUSR1, False)
        b.on_signal(signal.SIGUSR2, True)
        for name in ("record", "flock"):
            t.equal(getattr(a, name)(fa, EX), 0)
            for _ in range(10):
                b.begin(name, fb, EX, block=True)
                t.true(b.waits(), "it waits")
                b.signal(signal.SIGUSR1)
                t.equal(b.end(), E.EINTR)
            b.begin(name, fb, EX, block=True)
            t.true(b.waits(), "it waits")
            b.signal(signal.SIGUSR2)
            t.true(b.waits(), "this one lets the call go on")
            b.signal(signal.SIGUSR1)
            t.equal(b.end(), E.EINTR)
            t.equal(getattr(a, name)(fa, UN), 0)
            t.equal(getattr(c, name)(fc, EX), 0, "nobody has it")
            t.equal(getattr(c, name)(fc, UN), 0)


@shared_case()
def a_waiting_process_can_be_killed(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb), (c, fc) = m.actor(m.here), m.actor(m.there), m.actor(m.there)
        t.equal(a.flock(fa, EX), 0)
        b.begin("flock", fb, EX, block=True)
        c.begin("flock", fc, EX, block=True)
        t.true(b.waits() and c.waits(), "they wait")
        b.leave(signal.SIGKILL)
        t.equal(a.flock(fa, UN), 0)
        t.equal(c.end(), 0, "the next one has it")


@shared_case()
def interrupted_at_any_moment_a_lock_is_held_or_not_as_told(t):
    """The signal and the grant come at the same time."""
    with two_mounts(t) as m:
        (a, fa), (b, fb), (c, fc) = m.actor(m.here), m.actor(m.there), m.actor(m.here)
        b.on_signal(signal.SIGUSR1, False)
        for _ in range(100):
            t.equal(a.record(fa, EX), 0)
            b.begin("record", fb, EX, block=True)
            b.waits()
            a.begin("record", fa, UN)
            b.signal(signal.SIGUSR1)
            result = b.end()
            t.true(result in (0, E.EINTR), f"not {result}")
            t.equal(a.end(), 0)
            t.equal(c.record(fc, EX), E.EAGAIN if result == 0 else 0)
            c.record(fc, UN)
            t.equal(b.record(fb, UN), 0)


@shared_case(by_socket=True)
def a_killed_mount_loses_its_locks(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        gb = b.open(m.path(1, "g"))
        t.equal(a.record(fa, EX), 0)
        t.equal(a.flock(a.open(m.path(0, "g")), EX), 0)
        b.begin("record", fb, EX, block=True)
        t.true(b.waits(), "it waits")
        m.mounts[0].kill()
        t.equal(b.end(), 0)
        t.equal(b.flock(gb, EX, block=True), 0)


@shared_case(seconds=120)
def locks_and_waits_outlive_the_server(t):
    with two_mounts(t) as m:
        (a, fa), (b, fb), (c, fc) = m.actor(m.here), m.actor(m.there), m.actor(m.there)
        ga, gb = a.open(m.path(0, "g")), b.open(m.path(1, "g"))
        t.equal(a.record(fa, EX, 0, 50), 0)
        t.equal(a.record(fa, SH, 10, 10), 0)
        t.equal(a.flock(ga, SH), 0)
        t.equal(b.flock(gb, SH), 0)
        c.begin("record", fc, EX, 0, 5, block=True)
        t.true(c.waits(), "it waits")
        for how in ("restart", "kill"):
            if how == "kill":
                m.server.kill()
                m.server.start()
            else:
                m.server.restart()
            t.equal(b.record(fb, EX, 49, 1), E.EAGAIN, how)
            t.equal(b.record(fb, SH, 12, 1), 0, how)
            t.equal(b.record(fb, EX, 50, 1), 0, how)
            t.equal(b.record(fb, UN), 0, how)
            t.equal(b.flock(gb, EX), E.EAGAIN, how)
            t.equal(b.flock(gb, SH), 0, how)
            t.true(not c.has_ended(), "it still waits")
        t.equal(a.record(fa, UN), 0)
        t.equal(c.end(), 0)


@shared_case(seconds=120)
def a_server_that_comes_back_waits_for_the_mounts_before_it_grants(t):
    """One of them is stopped: what it holds is not given away before its time is up, and then it is."""
    with two_mounts(t) as m:
        (a, fa), (b, fb) = m.actor(m.here), m.actor(m.there)
        t.equal(a.record(fa, EX), 0)
        m.mounts[0].process.send_signal(signal.SIGSTOP)
        try:
            m.server.kill()
            m.server.start()
            b.begin("record", fb, EX)
            t.true(not b.has_ended(1), "not refused, not granted")
        finally:
            m.mounts[0].process.send_signal(signal.SIGCONT)
        t.equal(b.end(), E.EAGAIN, "it is back, and still has it")
        t.equal(a.record(fa, UN), 0)
        t.equal(b.record(fb, EX), 0)
