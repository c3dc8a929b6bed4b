"""A process that does what it is told, one call at a time: for locks, which belong to processes.

    with Actor() as one:
        fd = one.open(path)
        one.record(fd, fcntl.LOCK_EX)                       0, or an errno
        one.begin("record", fd, fcntl.LOCK_EX, block=True)  the same, not waited for
        one.waits()                                         it is in the call
        one.end()                                           its result, when there is one
"""
import ctypes
import fcntl
import os
import pickle
import select
import signal
import struct

import syscalls as sys_
from waiting import TookTooLong, wait_until

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
LOCK_CALLS = (b"72", b"73")     # fcntl, flock (x86-64)


LIBC = ctypes.CDLL(None, use_errno=True)


def called(result):
    """Of a call that Python's own functions would repeat after a signal."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return 0


class Calls:
    """What runs in the process."""

    def open(self, path, flags=os.O_RDWR):
        return os.open(path, flags)

    def close(self, fd):
        os.close(fd)
        return 0

    def dup(self, fd):
        return os.dup(fd)

    def record(self, fd, kind, start=0, length=0, block=False):
        kind = {fcntl.LOCK_UN: fcntl.F_UNLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK}[kind]
        return called(LIBC.fcntl(fd, fcntl.F_SETLKW if block else fcntl.F_SETLK, sys_.flock_record(kind, 0, start, length)))

    def flock(self, fd, kind, block=False):
        return called(LIBC.flock(fd, kind if block else kind | fcntl.LOCK_NB))

    def ofd(self, fd, kind, start=0, length=0, block=False):
        fcntl.fcntl(fd, F_OFD_SETLKW if block else F_OFD_SETLK, sys_.flock_record(kind, 0, start, length))
        return 0

    def getlk(self, fd, kind=fcntl.F_WRLCK, start=0, length=0):
        """(type, start, length, pid)"""
        got = sys_.flock_fields(fcntl.fcntl(fd, fcntl.F_GETLK, sys_.flock_record(kind, 0, start, length)))
        return got[0], got[2], got[3], got[4]

    def on_signal(self, number, restart):
        """A handler that does nothing; the system call it interrupts goes on, or not."""
        signal.signal(number, lambda signum, frame: None)
        return called(LIBC.siginterrupt(number, 0 if restart else 1))


class Actor:
    def __init__(self):
        down, up = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(down[1])
            os.close(up[0])
            try:
                self._serve(down[0], up[1])
            finally:
                os._exit(0)
        os.close(down[0])
        os.close(up[1])
        self.orders, self.answers, self.ended = down[1], up[0], False

    @staticmethod
    def _read(fd, size):
        data = b""
        while len(data) < size:
            piece = os.read(fd, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    @classmethod
    def _receive(cls, fd):
        return pickle.loads(cls._read(fd, struct.unpack("I", cls._read(fd, 4))[0]))

    @staticmethod
    def _send(fd, what):
        data = pickle.dumps(what)
        os.write(fd, struct.pack("I", len(data)) + data)

    def _serve(self, orders, answers):
        calls = Calls()
        while True:
            try:
                name, args, named = self._receive(orders)
            except EOFError:
                return
            try:
                result = getattr(calls, name)(*args, **named)
            except OSError as error:
                result = error.errno
            self._send(answers, result)

    def begin(self, name, *args, **named):
        self._send(self.orders, (name, args, named))

    def has_ended(self, seconds=0):
        return bool(select.select([self.answers], [], [], seconds)[0])

    def end(self, seconds=30):
        if not self.has_ended(seconds):
            raise TookTooLong(f"no end of a call after {seconds} s")
        return self._receive(self.answers)

    def waits(self):
        """Returns when the process is inside a call for a lock, which has not ended."""
        def inside():
            with open(f"/proc/{self.pid}/syscall", "rb") as f:
                return f.read().split()[0] in LOCK_CALLS
        wait_until(inside, 10, "the process to wait for its lock")
        return not self.has_ended()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args, **named):
            self.begin(name, *args, **named)
            return self.end()
        return call

    def signal(self, number):
        os.kill(self.pid, number)

    def leave(self, number=None):
        """Ends the process, by a signal if one is given."""
        if self.ended:
            return
        self.ended = True
        if number:
            os.kill(self.pid, number)
        os.close(self.orders)
        os.waitpid(self.pid, 0)
        os.close(self.answers)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.leave(signal.SIGKILL)
