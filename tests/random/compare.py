"""Looking at a real file system and finding what differs from the model.

Every function raises Differs with what, where, expected and got; none changes anything."""
import errno
import mmap
import os
import stat
import time

from content import first_difference
from mounting import has_cache
from tree import data_ranges

DENSE = 24 << 20            # files up to this size are read whole
READ_SIZE = 1 << 20
PAGE = 4096
CLOCK_SLACK_NS = 40_000_000    # the kernel's coarse clock lags by up to a tick


class Differs(Exception):
    pass


KEEP, NOW, MAY = "keep", "now", "may"       # what an operation does to a time stamp


def check_attributes(where, st, inode, began_ns, policy, with_atime):
    """policy: {"mtime": KEEP, NOW or MAY, ...}.  What is seen is remembered as the value to keep."""
    wanted = {"type": inode.kind, "mode": inode.mode, "uid": inode.uid, "gid": inode.gid, "nlink": inode.links()}
    got = {"type": stat.S_IFMT(st.st_mode), "mode": stat.S_IMODE(st.st_mode), "uid": st.st_uid, "gid": st.st_gid, "nlink": st.st_nlink}
    if inode.is_link:
        wanted["mode"] = 0o777
    if inode.is_file:
        wanted["size"], got["size"] = inode.content.size, st.st_size
    elif inode.is_link:
        wanted["size"], got["size"] = len(os.fsencode(inode.target)), st.st_size
    elif not inode.is_directory:
        wanted["device"], got["device"] = inode.device, st.st_rdev
    if inode.seen_as is not None:
        wanted["inode"], got["inode"] = inode.seen_as, st.st_ino
    for field, value in wanted.items():
        if got[field] != value:
            form = oct if field in ("mode", "type") else repr
            raise Differs(f"{where}: {field}: expected {form(value)}, got {form(got[field])}")
    inode.seen_as = st.st_ino
    seen = {"mtime": st.st_mtime_ns, "ctime": st.st_ctime_ns}
    if with_atime:
        seen["atime"] = st.st_atime_ns
    for field, value in seen.items():
        if inode.unsettled and field != "atime":
            inode.times[field] = None
            continue
        check_time(where, field, value, inode.times[field], policy.get(field, KEEP), began_ns)
        inode.times[field] = value


def check_time(where, field, value, known, policy, began_ns):
    if known is None or policy == MAY and value == known:
        return
    if policy == KEEP:
        if value != known:
            raise Differs(f"{where}: {field} was {known}, is {value}, and nothing should have moved it")
    elif not began_ns - CLOCK_SLACK_NS <= value <= time.time_ns() + CLOCK_SLACK_NS:
        raise Differs(f"{where}: {field} is {value}, not the time of the operation ({began_ns} to {time.time_ns()})")


def check_xattrs(where, way, inode):
    """way: a path or a descriptor."""
    how = {} if isinstance(way, int) else {"follow_symlinks": False}
    got = {name: os.getxattr(way, name, **how) for name in os.listxattr(way, **how) if name.startswith(("user.", "trusted."))}
    if got != inode.xattrs:
        wrong = {n for n in got.keys() | inode.xattrs.keys() if got.get(n) != inode.xattrs.get(n)}
        raise Differs(f"{where}: xattrs: expected {_short(inode.xattrs, wrong)}, got {_short(got, wrong)}")


def _short(values, names):
    return {n: (v if len(v) < 40 else v[:30] + b"... %d bytes" % len(v)) for n, v in values.items() if n in names}


# -- contents, read in several ways

def read_plain(fd, offset, length, rng):
    return pread_all(fd, offset, length)


def pread_all(fd, offset, length):
    """As much as there is, up to length."""
    parts = []
    while length > 0:
        part = os.pread(fd, min(length, READ_SIZE), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def read_pieces(fd, offset, length, rng):
    """Many reads of odd sizes, in any order."""
    cuts = sorted({offset, offset + length} | {offset + rng.randrange(length + 1) for _ in range(8)})
    spans = list(zip(cuts, cuts[1:]))
    rng.shuffle(spans)
    found = {start: pread_all(fd, start, end - start) for start, end in spans}
    return b"".join(found[start] for start in sorted(found))


def read_forgotten(fd, offset, length, rng):
    """After the kernel has dropped its clean pages."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return pread_all(fd, offset, length)


def read_mapped(fd, offset, length, rng):
    if not length:
        return b""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(fd, offset - start + length, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as view:
        return view[offset - start:]


def read_direct(fd, offset, length, rng):
    """Past the kernel's cache; offset and memory must be aligned."""
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        # One that is passed through cannot be opened without a name just after a restart of the server (docs/consistency.md).
        if error.errno != errno.ESTALE or not has_cache():
            raise
        return read_forgotten(fd, offset, length, rng)
    start = offset - offset % PAGE
    parts, at, end = [], start, offset + length
    try:
        with mmap.mmap(-1, READ_SIZE) as memory:
            while at < end:
                got = os.preadv(direct, [memory], at)
                parts.append(memory[:got])
                at += got
                if got < READ_SIZE:
                    break
    finally:
        os.close(direct)
    return b"".join(parts)[offset - start:offset - start + length]


READERS = [read_plain, read_plain, read_pieces, read_forgotten, read_mapped, read_direct]


def check_range(where, fd, content, offset, length, rng, reader):
    want = content.read(offset, length)
    found = first_difference(reader(fd, offset, len(want), rng), want)
    if found:
        raise Differs(f"{where}: content differs at {offset + found[0]} (read by {reader.__name__}): {found[1]}")


def check_content(where, fd, content, rng, reader=None):
    """The whole content of a dense file; of a huge one what either side says is data, and places between."""
    reader = reader or rng.choice(READERS)
    if content.size <= DENSE:
        check_range(where, fd, content, 0, content.size, rng, reader)
        if os.pread(fd, 1, content.size):
            raise Differs(f"{where}: there is something behind the end ({content.size})")
        return
    spans = list(content.ranges()) + [(start, min(end, start + READ_SIZE)) for start, end in data_ranges(fd, content.size)]
    for _ in range(3):
        at = rng.randrange(content.size)
        spans.append((at, min(at + 5000, content.size)))
    spans.append((max(0, content.size - 5000), content.size))
    for start, end in spans:
        check_range(where, fd, content, start, end - start, rng, reader)


def check_holes(where, fd, content):
    """What SEEK_DATA leaves out must be zero, and SEEK_HOLE must come to an end at the size."""
    at = 0
    for start, end in data_ranges(fd, content.size):
        if not at <= start < end <= content.size:
            raise Differs(f"{where}: SEEK_DATA and SEEK_HOLE give {start} to {end} after {at}, of {content.size} bytes")
        _must_be_zero(where, content, at, start)
        at = end
    _must_be_zero(where, content, at, content.size)
    if content.size:
        hole = os.lseek(fd, content.size - 1, os.SEEK_HOLE)
        if hole > content.size:
            raise Differs(f"{where}: SEEK_HOLE gives {hole} in a file of {content.size} bytes")


def _must_be_zero(where, content, start, end):
    for a, b in content.ranges():
        a, b = max(a, start), min(b, end)
        if a < b and content.read(a, b - a).count(0) != b - a:
            raise Differs(f"{where}: SEEK_DATA says {start} to {end} is a hole, but something was written at {a} to {b}")


def check_listing(where, path, inode):
    got = sorted(os.listdir(path))
    want = sorted(inode.children)
    if got != want:
        missing, strange = sorted(set(want) - set(got)), sorted(set(got) - set(want))
        raise Differs(f"{where}: names: missing {missing}, not expected {strange}, {len(got)} listed")
