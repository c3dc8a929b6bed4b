"""flock, fcntl and OFD locks."""
import errno as E
import fcntl
import os
import signal

import syscalls as sys_
from suite import case

F_OFD_SETLK, F_OFD_GETLK = 37, 36


def in_child(function):
    """Runs it in another process and tells what came out: 0, or an errno."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                function()
                code = 0
            except OSError as error:
                code = error.errno
            os.write(writer, bytes([code]))
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1)
    os.close(reader)
    os.waitpid(pid, 0)
    return answer[0] if answer else -1


def lock(path, kind, start=0, length=0, block=False):
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, kind if block else kind | fcntl.LOCK_NB, length, start)
    return fd


@case
def flock_excludes_and_shares(t):
    path = t.file("f", b"x")
    fd = t.open(path, os.O_RDWR)

    def other(kind):
        return lambda: fcntl.flock(os.open(path, os.O_RDWR), kind | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX)
    t.equal(in_child(other(fcntl.LOCK_EX)), E.EAGAIN)
    t.equal(in_child(other(fcntl.LOCK_SH)), E.EAGAIN)
    fcntl.flock(fd, fcntl.LOCK_SH)
    t.equal(in_child(other(fcntl.LOCK_SH)), 0)
    t.equal(in_child(other(fcntl.LOCK_EX)), E.EAGAIN)
    fcntl.flock(fd, fcntl.LOCK_UN)
    t.equal(in_child(other(fcntl.LOCK_EX)), 0)


@case
def flock_belongs_to_the_open_file(t):
    path = t.file("f", b"x")
    one, two = t.open(path, os.O_RDWR), t.open(path, os.O_RDWR)
    fcntl.flock(one, fcntl.LOCK_EX)
    t.fails(E.EAGAIN, fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    copy = os.dup(one)
    t.close(one)
    t.fails(E.EAGAIN, fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(copy)
    t.works(fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)


@case
def record_locks_exclude_only_where_they_overlap(t):
    path = t.file("f", b"x" * 100)
    fd = t.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX, 0, 20)), 0)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX, 29, 1)), E.EAGAIN)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX, 30, 10)), 0)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_SH, 15, 10)), E.EAGAIN)
    fcntl.lockf(fd, fcntl.LOCK_UN, 5, 22)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX, 22, 5)), 0, "a part was released")
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX, 27, 1)), E.EAGAIN, "the rest was not")


@case
def getlk_names_the_holder(t):
    path = t.file("f", b"x" * 100)
    fd = t.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    me = os.getpid()

    def ask():
        other = os.open(path, os.O_RDWR)
        kind, _, start, length, pid = sys_.flock_fields(fcntl.fcntl(other, fcntl.F_GETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0)))
        if (kind, start, length, pid) != (fcntl.F_WRLCK, 20, 10, me):
            raise OSError(1, "wrong")
    t.equal(in_child(ask), 0)


@case
def closing_any_descriptor_releases_record_locks(t):
    path = t.file("f", b"x")
    fd, other = t.open(path, os.O_RDWR), t.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX)), E.EAGAIN)
    t.close(other)
    t.equal(in_child(lambda: lock(path, fcntl.LOCK_EX)), 0)


@case
def ofd_locks_belong_to_the_open_file(t):
    path = t.file("f", b"x")
    one, two = t.open(path, os.O_RDWR), t.open(path, os.O_RDWR)
    fcntl.fcntl(one, F_OFD_SETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0))
    t.fails(E.EAGAIN, fcntl.fcntl, two, F_OFD_SETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0))
    t.close(one)
    t.works(fcntl.fcntl, two, F_OFD_SETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0))


def blocked_until_released(t, take, release, wait):
    """A child waits for what we hold, and gets it when we let go."""
    take()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"w")
        try:
            wait()
            os.write(writer, b"g")
        finally:
            os._exit(0)
    os.close(writer)
    t.equal(os.read(reader, 1), b"w")
    os.set_blocking(reader, False)
    t.fails(E.EAGAIN, os.read, reader, 1, what="it has not got it yet")
    os.set_blocking(reader, True)
    release()
    t.equal(os.read(reader, 1), b"g", "it got it")
    os.close(reader)
    os.waitpid(pid, 0)


@case
def waiting_for_a_lock_ends_when_it_is_free(t):
    path = t.file("f", b"x")
    fd = t.open(path, os.O_RDWR)
    blocked_until_released(t, lambda: fcntl.flock(fd, fcntl.LOCK_EX), lambda: fcntl.flock(fd, fcntl.LOCK_UN),
                           lambda: fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX))
    blocked_until_released(t, lambda: fcntl.lockf(fd, fcntl.LOCK_EX), lambda: fcntl.lockf(fd, fcntl.LOCK_UN),
                           lambda: lock(path, fcntl.LOCK_EX, block=True))


@case
def a_killed_holder_loses_its_locks(t):
    path = t.file("f", b"x")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(path, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(writer, b"x")
        signal.pause()
        os._exit(0)
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    fd = t.open(path, os.O_RDWR)
    t.works(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    t.works(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
