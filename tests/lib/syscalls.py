"""System calls that Python's os module lacks or hides behind conveniences.

Each raises OSError with the errno, as os does, and passes its arguments on as they
are: a test of errno precision wants the kernel's answer, not Python's.
"""
import ctypes
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_REMOVEDIR = 0x200
AT_SYMLINK_FOLLOW = 0x400
AT_EMPTY_PATH = 0x1000
AT_EACCESS = 0x200

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
FALLOC_COLLAPSE_RANGE = 0x08
FALLOC_ZERO_RANGE = 0x10
FALLOC_INSERT_RANGE = 0x20

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
O_TMPFILE = os.O_TMPFILE
O_PATH = os.O_PATH

DT = {1: "fifo", 2: "char", 4: "dir", 6: "block", 8: "file", 10: "link", 12: "socket"}

_off = ctypes.c_int64
_size = ctypes.c_size_t


def _bytes(path):
    return path if path is None else os.fsencode(path)


def _call(name, *args, restype=ctypes.c_int):
    function = getattr(libc, name)
    function.restype = restype
    ctypes.set_errno(0)
    result = function(*args)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def renameat2(old, new, flags=0, olddir=AT_FDCWD, newdir=AT_FDCWD):
    return _call("renameat2", olddir, _bytes(old), newdir, _bytes(new), ctypes.c_uint(flags))


def fallocate(fd, mode, offset, length):
    return _call("fallocate", fd, mode, _off(offset), _off(length))


def copy_file_range(source, source_offset, target, target_offset, length, flags=0):
    """Offsets may be None: the descriptor's position is used and moved."""
    a = None if source_offset is None else ctypes.byref(_off(source_offset))
    b = None if target_offset is None else ctypes.byref(_off(target_offset))
    return _call("copy_file_range", source, a, target, b, _size(length), ctypes.c_uint(flags), restype=ctypes.c_ssize_t)


def linkat(old, new, flags=0, olddir=AT_FDCWD, newdir=AT_FDCWD):
    return _call("linkat", olddir, _bytes(old), newdir, _bytes(new), flags)


def unlinkat(path, flags=0, dirfd=AT_FDCWD):
    return _call("unlinkat", dirfd, _bytes(path), flags)


def openat(path, flags, mode=0o666, dirfd=AT_FDCWD):
    return _call("openat", dirfd, _bytes(path), flags | os.O_CLOEXEC, ctypes.c_uint(mode))


def creat(path, mode=0o666):
    return _call("creat", _bytes(path), ctypes.c_uint(mode))


def mknod(path, mode, device=0):
    return _call("mknod", _bytes(path), ctypes.c_uint(mode), ctypes.c_uint64(device))


def lseek(fd, offset, whence):
    return _call("lseek", fd, _off(offset), whence, restype=_off)


def pread(fd, length, offset):
    return os.pread(fd, length, offset)


def truncate(path, length):
    return _call("truncate", _bytes(path), _off(length))


def ftruncate(fd, length):
    return _call("ftruncate", fd, _off(length))


def faccessat(path, mode, flags=0, dirfd=AT_FDCWD):
    return _call("faccessat", dirfd, _bytes(path), mode, flags)


def sync_file_range(fd, offset, length, flags):
    return _call("sync_file_range", fd, _off(offset), _off(length), ctypes.c_uint(flags))


def syncfs(fd):
    return _call("syncfs", fd)


def utimensat(path, atime, mtime, flags=0, dirfd=AT_FDCWD):
    """Times are (seconds, nanoseconds), where nanoseconds may be UTIME_NOW or UTIME_OMIT; None for both: now."""
    times = None
    if atime is not None:
        times = struct.pack("qqqq", *atime, *mtime)
    return _call("utimensat", dirfd, _bytes(path), times, flags)


class Statx:
    """The fields of statx(2) that stat(2) has not."""

    def __init__(self, path, flags=AT_SYMLINK_NOFOLLOW, mask=0xFFF, dirfd=AT_FDCWD):
        raw = ctypes.create_string_buffer(256)
        _call("statx", dirfd, _bytes(path), flags, ctypes.c_uint(mask), raw)
        (self.mask, self.blksize, self.attributes, self.nlink, self.uid, self.gid, self.mode, _,
         self.ino, self.size, self.blocks, self.attributes_mask) = struct.unpack_from("IIQIIIHHQQQQ", raw)
        seconds, nanoseconds = struct.unpack_from("qI", raw, 80)
        self.btime_ns = seconds * 10 ** 9 + nanoseconds
        self.has_btime = bool(self.mask & 0x800)


class Directory:
    """opendir and friends, with positions."""

    def __init__(self, path):
        libc.opendir.restype = ctypes.c_void_p
        ctypes.set_errno(0)
        self.handle = libc.opendir(_bytes(path))
        if not self.handle:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)

    def read(self):
        """(name, inode number, type, position after it), or None at the end."""
        libc.readdir64.restype = ctypes.c_void_p
        ctypes.set_errno(0)
        entry = libc.readdir64(ctypes.c_void_p(self.handle))
        if not entry:
            number = ctypes.get_errno()
            if number:
                raise OSError(number, os.strerror(number))
            return None
        inode, position, _, kind = struct.unpack("QqHB", ctypes.string_at(entry, 19))
        return os.fsdecode(ctypes.string_at(entry + 19)), inode, kind, position

    def __iter__(self):
        while (entry := self.read()) is not None:
            yield entry

    def tell(self):
        libc.telldir.restype = ctypes.c_long
        return libc.telldir(ctypes.c_void_p(self.handle))

    def seek(self, position):
        libc.seekdir(ctypes.c_void_p(self.handle), ctypes.c_long(position))

    def rewind(self):
        libc.rewinddir(ctypes.c_void_p(self.handle))

    def close(self):
        if self.handle:
            libc.closedir(ctypes.c_void_p(self.handle))
            self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def getdents(fd, size=32768):
    """One getdents64 call: a list of (name, inode number, type, position)."""
    raw = ctypes.create_string_buffer(size)
    count = _call("getdents64", fd, raw, _size(size), restype=ctypes.c_ssize_t)
    entries, at = [], 0
    while at < count:
        inode, position, length, kind = struct.unpack_from("QqHB", raw, at)
        name = raw.raw[at + 19:at + length].split(b"\0", 1)[0]
        entries.append((os.fsdecode(name), inode, kind, position))
        at += length
    return entries


def flock_record(kind, whence, start, length, pid=0):
    """struct flock, for fcntl locks."""
    return struct.pack("hhqqi4x", kind, whence, start, length, pid)


def flock_fields(record):
    return struct.unpack("hhqqi4x", record)
