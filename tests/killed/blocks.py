"""Blocks that programs write round and round, one program after the other, each full of the number of its write; and what must be in
them when one was killed."""
import mmap
import os
import struct
import threading

BLOCK = 4096
COUNT = 16


class Blocks:
    BYTES = BLOCK * COUNT

    def __init__(self):
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)      # the number of the last write that has returned

    def done(self):
        return struct.unpack_from("Q", self.shared)[0]

    def write(self, fd):
        n = self.done() + 1
        os.pwrite(fd, struct.pack("Q", n) * (BLOCK // 8), n % COUNT * BLOCK)
        struct.pack_into("Q", self.shared, 0, n)

    def _write_for_ever(self, fd):
        while True:
            self.write(fd)

    def write_for_ever(self, fd):
        """By a thread of its own."""
        threading.Thread(target=self._write_for_ever, args=(fd,), daemon=True).start()

    def wrong(self, path):
        """The blocks that hold something else than the last write that returned, or the one after it."""
        done, found = self.done(), []
        with open(path, "rb") as f:
            for block in range(COUNT):
                data = f.read(BLOCK)
                n = struct.unpack_from("Q", data)[0]
                wanted = {max(done - (done - block) % COUNT, 0)}
                if (done + 1) % COUNT == block:
                    wanted.add(done + 1)
                if data != struct.pack("Q", n) * (BLOCK // 8) or n not in wanted:
                    found.append((block, n, done))
        return found
