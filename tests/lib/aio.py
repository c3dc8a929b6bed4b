"""Asynchronous I/O of the kernel (io_submit, which libaio wraps), for x86-64 and arm64.

    with Aio(32) as aio:
        aio.write(fd, buffer, 0, 4096, offset)      # begins
        aio.wait()                                  # until all that was begun has ended; raises what failed
"""
import ctypes
import os
import platform
import struct

SETUP, DESTROY, SUBMIT, GETEVENTS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}.get(platform.machine(), (None,) * 4)
PREAD, PWRITE = 0, 1
CONTROL = struct.Struct("<QIiHhIQQqQII")        # struct iocb
EVENT = struct.Struct("<QQqq")                  # struct io_event

_call = ctypes.CDLL(None, use_errno=True).syscall
_call.restype = ctypes.c_long


def possible():
    return SETUP is not None


def _checked(*args):
    done = _call(*args)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


class Aio:
    """Up to `depth` operations under way at a time."""

    def __init__(self, depth):
        self.context, self.under_way, self.kept = ctypes.c_ulong(0), {}, 0
        _checked(ctypes.c_long(SETUP), ctypes.c_uint(depth), ctypes.byref(self.context))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _call(ctypes.c_long(DESTROY), self.context)

    def write(self, fd, buffer, start, length, offset):
        """Of a buffer that can be written to, like an mmap, the bytes from `start` on."""
        self.kept += 1
        data = (ctypes.c_char * length).from_buffer(buffer, start)
        control = ctypes.create_string_buffer(CONTROL.pack(self.kept, 0, 0, PWRITE, 0, fd, ctypes.addressof(data), length, offset, 0, 0, 0))
        self.under_way[self.kept] = (data, control, length)
        _checked(ctypes.c_long(SUBMIT), self.context, ctypes.c_long(1), (ctypes.c_void_p * 1)(ctypes.addressof(control)))

    def wait(self):
        events = ctypes.create_string_buffer(EVENT.size * 64)
        failed = None
        while self.under_way:
            count = _checked(ctypes.c_long(GETEVENTS), self.context, ctypes.c_long(1), ctypes.c_long(64), events, None)
            for k in range(count):
                number, _, result, _ = EVENT.unpack_from(events, k * EVENT.size)
                _, _, length = self.under_way.pop(number)
                if result != length:
                    failed = OSError(-result if result < 0 else 0, f"{result} of {length} bytes were written")
        if failed:
            raise failed
