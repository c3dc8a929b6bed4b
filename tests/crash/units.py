"""Bytes that say where they belong.

A file is made of units of 512 bytes.  Each names its file, its offset and its generation (how often
that place was written), and the rest of it follows from these, so that whatever is read can be told
apart: the right unit, an older one, one of another file, or something nobody wrote."""
import hashlib
import struct

SIZE = 512
HEAD = struct.Struct("<8sQQQ")
MAGIC = b"epochCFS"


def unit(file, offset, generation):
    head = HEAD.pack(MAGIC, file, offset, generation)
    return head + hashlib.blake2b(head, digest_size=32).digest() * 15


def stream(file, offset, length, generation=0):
    """The bytes of a file at any offset."""
    first = offset - offset % SIZE
    data = b"".join(unit(file, at, generation) for at in range(first, offset + length, SIZE))
    return data[offset - first:offset - first + length]


def parse(data):
    """(file, offset, generation) of a unit; None if it is none."""
    if len(data) < SIZE:
        return None
    magic, file, offset, generation = HEAD.unpack_from(data)
    if magic != MAGIC or unit(file, offset, generation) != data[:SIZE]:
        return None
    return file, offset, generation


def describe(data):
    """What a unit that should not be there is, in words."""
    found = parse(data)
    if found:
        return f"the unit of file {found[0]} at {found[1]}, generation {found[2]}"
    if not data.strip(b"\0"):
        return f"{len(data)} zeros"
    return f"bytes nobody wrote: {data[:24].hex()}..."


def difference(data, file, generation=0):
    """Where data, read from the beginning of a file, is not what was written there; None if it all is."""
    want = stream(file, 0, len(data), generation)
    if data == want:
        return None
    for at in range(0, len(data), SIZE):
        if data[at:at + SIZE] != want[at:at + SIZE]:
            return f"at {at} there is {describe(data[at:at + SIZE])}"
    return None
