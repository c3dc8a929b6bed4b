"""The three kinds of locks, called alike: with LOCK_EX, LOCK_SH or LOCK_UN, waiting or not."""
import fcntl

import syscalls as sys_

RECORD_KINDS = {fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}


def record_lock(fd, kind, start=0, length=1, wait=False):
    """fcntl: belongs to the process."""
    fcntl.fcntl(fd, fcntl.F_SETLKW if wait else fcntl.F_SETLK, sys_.flock_record(RECORD_KINDS[kind], 0, start, length))


def ofd_lock(fd, kind, start=0, length=1, wait=False):
    """fcntl: belongs to the open file."""
    fcntl.fcntl(fd, sys_.F_OFD_SETLKW if wait else sys_.F_OFD_SETLK, sys_.flock_record(RECORD_KINDS[kind], 0, start, length))


def flock(fd, kind, wait=False):
    """The whole file; belongs to the open file."""
    fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))


KINDS = {"fcntl": record_lock, "OFD": ofd_lock, "flock": flock}
