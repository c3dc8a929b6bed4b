"""What a file holds, in memory: sparse, so that a file of 8 TiB with two bytes in it costs two pieces."""

PIECE = 65536


class Content:
    """Bytes from 0 to size.  What was never written, or was cut out, is zero.

    Pieces that are missing are zero, and in the last piece everything behind the size is zero too,
    so that making the file longer needs no cleaning up."""

    def __init__(self):
        self.size = 0
        self.pieces = {}

    def _parts(self, offset, length):
        """The (piece number, from, to) that a range touches."""
        end = offset + length
        while offset < end:
            number, start = divmod(offset, PIECE)
            stop = min(PIECE, start + end - offset)
            yield number, start, stop
            offset += stop - start

    def write(self, offset, data):
        at = 0
        for number, start, stop in self._parts(offset, len(data)):
            piece = self.pieces.setdefault(number, bytearray(PIECE))
            piece[start:stop] = data[at:at + stop - start]
            at += stop - start
        if data:
            self.size = max(self.size, offset + len(data))

    def read(self, offset, length):
        length = max(0, min(length, self.size - offset))
        found = []
        for number, start, stop in self._parts(offset, length):
            piece = self.pieces.get(number)
            found.append(bytes(stop - start) if piece is None else bytes(piece[start:stop]))
        return b"".join(found)

    def zero(self, offset, length):
        """Cuts a hole.  The size stays."""
        end = offset + length
        first, last = offset // PIECE, (end + PIECE - 1) // PIECE
        for number in [n for n in self.pieces if first <= n < last]:
            start = max(offset - number * PIECE, 0)
            stop = min(end - number * PIECE, PIECE)
            if start == 0 and stop == PIECE:
                del self.pieces[number]
            else:
                self.pieces[number][start:stop] = bytes(stop - start)

    def truncate(self, size):
        if size < self.size:
            self.zero(size, self.size - size)
        self.size = size

    def extend(self, size):
        self.size = max(self.size, size)

    def ranges(self):
        """(start, end) of what may not be zero, clipped to the size."""
        for number in sorted(self.pieces):
            start = number * PIECE
            if start < self.size:
                yield start, min(start + PIECE, self.size)


def first_difference(got, want):
    """Where two byte strings part, and how, in words."""
    if got == want:
        return None
    length = min(len(got), len(want))
    at = 0
    step = 4096
    while at < length and got[at:at + step] == want[at:at + step]:
        at += step
    at = min(at, length)
    while at < length and got[at] == want[at]:
        at += 1
    bad = sum(1 for a, b in zip(got[at:at + (1 << 20)], want[at:at + (1 << 20)]) if a != b)
    return at, f"expected {want[at:at + 24]!r}, got {got[at:at + 24]!r} ({len(want)} bytes expected, {len(got)} read, " \
               f"{bad} differ in the MiB from there)"
