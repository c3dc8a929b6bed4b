"""How much is fetched for what is read, through the kernel's pages and its own read-ahead."""
import mmap
import os
import random
import re

from cache_cases import Cached, drop_pages
from company import put, take
from suite import case

MIB = 1 << 20
CHUNK = 65536
SIZE = 48 * MIB


class Read:
    """A file that is stored, and a mount over TCP that has nothing of it in memory or on its disk."""

    def __init__(self, test, *options):
        self.test = test
        self.company = Cached(test, extra=options)
        self.mount = self.company.mounts[0]
        self.path = os.path.join(self.company.points[0], "file")
        self.content = test.rng.randbytes(SIZE)
        put(self.path, self.content)
        self.company.again()

    def told(self):
        """What the mount says when it ends: bytes that came from the server, and of those read ahead, used, wasted."""
        self.mount.umount()
        with open(self.mount.log, encoding="utf-8") as f:
            found = re.findall(r"(\d+) came from the server, \d+ from the disk; of (\d+) bytes read ahead (\d+) were used, (\d+)",
                               f.read())
        self.mount.start()
        return tuple(int(n) for n in found[-1])

    def end(self):
        self.test.equal(self.company.problems(), [], "what is wrong at the end")


@case(seconds=60, only="epochfs")
def rows_of_a_mapping_at_random_bring_a_chunk_each(test):
    read = Read(test)
    rng, chunks = random.Random(test.rng.random()), set()
    fd = os.open(read.path, os.O_RDONLY)
    with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as table:
        table.madvise(mmap.MADV_RANDOM)
        for _ in range(150):
            at = rng.randrange(SIZE // 4096) * 4096
            chunks.add(at // CHUNK)
            if table[at:at + 4096] != read.content[at:at + 4096]:
                test.true(False, f"the row at {at} is not what was written")
    os.close(fd)
    fetched, ahead, _, _ = read.told()
    test.equal(ahead, 0, "bytes read ahead")
    test.true(len(chunks) * CHUNK <= fetched <= len(chunks) * CHUNK + SIZE // 256,
              f"{fetched} bytes were fetched for {len(chunks)} chunks")
    read.end()


@case(seconds=60, only="epochfs")
def a_mapping_nobody_gave_advice_for_does_not_bring_the_file(test):
    """The kernel reads around each fault; what it reads is what is fetched, and no more.  At the beginning of a file it would look like
    somebody who reads all of it."""
    read = Read(test)
    rng, faults, around = random.Random(test.rng.random()), 24, 512 << 10
    fd = os.open(read.path, os.O_RDONLY)
    with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as table:
        for _ in range(faults):
            at = rng.randrange(MIB // 4096, SIZE // 4096) * 4096
            if table[at:at + 4096] != read.content[at:at + 4096]:
                test.true(False, f"the row at {at} is not what was written")
    os.close(fd)
    fetched, _, _, _ = read.told()
    test.true(fetched <= faults * (around + 2 * CHUNK) + SIZE // 256, f"{fetched} bytes were fetched for {faults} faults")
    read.end()


@case(seconds=60, only="epochfs")
def a_file_that_is_read_through_is_fetched_once(test):
    read = Read(test)
    test.true(take(read.path) == read.content, "it is what was written")
    fetched, ahead, used, wasted = read.told()
    test.true(SIZE <= fetched <= SIZE + SIZE // 10, f"{fetched} bytes were fetched")
    test.true(ahead > 0 and used >= ahead * 0.8, f"of {ahead} bytes read ahead {used} were used")
    test.equal(wasted, 0, "bytes wasted")
    drop_pages()
    test.true(take(read.path) == read.content, "it is so from the disk, too")
    fetched, _, _, _ = read.told()
    test.true(fetched <= SIZE // 20, f"{fetched} bytes were fetched again")
    read.end()


@case(seconds=60, only="epochfs")
def read_ahead_can_be_switched_off(test):
    read = Read(test, "--readahead", "0", "--parallel", "1")
    with open(read.path, "rb", buffering=0) as f:
        test.true(f.read(MIB) == read.content[:MIB], "the beginning is what was written")
    fetched, ahead, _, _ = read.told()
    test.equal(ahead, 0, "bytes read ahead")
    test.true(fetched <= 9 * MIB, f"{fetched} bytes were fetched: the kernel reads ahead by itself")
    read.end()
