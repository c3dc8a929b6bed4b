"""mmap, shared and private."""
import mmap
import os

from suite import case


@case
def a_shared_mapping_writes_to_the_file(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"a" * 10000, 0)
    with mmap.mmap(fd, 10000) as m:
        m[100:105] = b"HELLO"
        m[9995:10000] = b"WORLD"
        m.flush()
        t.equal(os.pread(fd, 5, 100), b"HELLO", "read after msync")
    with open(t.path("f"), "rb") as f:
        data = f.read()
    t.equal(data, b"a" * 100 + b"HELLO" + b"a" * 9890 + b"WORLD")


@case
def a_write_is_seen_in_a_mapping_and_the_other_way_round(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"a" * 8192, 0)
    with mmap.mmap(fd, 8192) as m:
        t.equal(m[:4], b"aaaa")
        os.pwrite(fd, b"bbbb", 0)
        t.equal(m[:4], b"bbbb", "mapping after write")
        m[4096:4100] = b"cccc"
        t.equal(os.pread(fd, 4, 4096), b"cccc", "read after a store")


@case
def stores_survive_munmap_close_and_fsync(t):
    fd = os.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, 300000)
    m = mmap.mmap(fd, 300000)
    os.close(fd)
    for at in range(0, 300000, 5000):
        m[at:at + 4] = at.to_bytes(4, "little")
    m.close()
    data = t.read(t.path("f"))
    t.true(all(data[at:at + 4] == at.to_bytes(4, "little") for at in range(0, 300000, 5000)), "every store is there")
    t.equal(len(data), 300000)


@case
def a_private_mapping_leaves_the_file_alone(t):
    path = t.file("f", b"a" * 5000)
    fd = t.open(path, os.O_RDWR)
    with mmap.mmap(fd, 5000, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as m:
        m[:5] = b"HELLO"
        t.equal(m[:5], b"HELLO")
    t.content(path, b"a" * 5000)


@case
def a_mapping_follows_truncation_and_growth(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"a" * 8192, 0)
    with mmap.mmap(fd, 8192) as m:
        os.ftruncate(fd, 4096)
        os.ftruncate(fd, 8192)
        t.equal(m[4096:], bytes(4096), "zeroes after cutting and growing")
        m[8000:8003] = b"xyz"
        m.flush()
    t.equal(os.pread(fd, 3, 8000), b"xyz")


@case
def stores_into_a_hole_fill_only_their_pages(t):
    fd = t.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, 1 << 24)
    with mmap.mmap(fd, 1 << 24) as m:
        m[1 << 23] = 7
        m.flush()
    os.fsync(fd)
    t.equal(os.pread(fd, 3, (1 << 23) - 1), bytes([0, 7, 0]))
    t.true(os.fstat(fd).st_blocks * 512 <= 1 << 20, "few blocks")


@case
def an_unlinked_mapped_file_goes_on(t):
    fd = os.open(t.path("f"), os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"a" * 4096, 0)
    with mmap.mmap(fd, 4096) as m:
        os.unlink(t.path("f"))
        os.close(fd)
        m[:2] = b"zz"
        m.flush()
        t.equal(m[:3], b"zza")
