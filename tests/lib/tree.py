"""A picture of a folder: every name, attribute, xattr and byte, to be compared with a later one."""
import hashlib
import os
import stat

CHUNK = 1 << 20


def data_ranges(fd, size):
    """The (start, end) ranges of a file that SEEK_DATA says may hold data."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def content_digest(path, size):
    """A digest of the content that does not depend on where the file system keeps holes."""
    digest = hashlib.sha256(str(size).encode())
    fd = os.open(path, os.O_RDONLY)
    try:
        for start, end in data_ranges(fd, size):
            at = start - start % CHUNK
            while at < end:
                data = os.pread(fd, CHUNK, at)
                if data.count(0) != len(data):
                    digest.update(at.to_bytes(8, "little") + hashlib.sha256(data).digest())
                at += CHUNK
                if not data:
                    break
    finally:
        os.close(fd)
    return digest.hexdigest()


def xattrs(path):
    found = {}
    for name in os.listxattr(path, follow_symlinks=False):
        found[name] = os.getxattr(path, name, follow_symlinks=False)
    return found


def picture_of(path):
    """What a name stands for, as a dictionary."""
    st = os.lstat(path)
    kind = stat.S_IFMT(st.st_mode)
    picture = {
        "mode": oct(st.st_mode), "uid": st.st_uid, "gid": st.st_gid, "nlink": st.st_nlink, "inode": st.st_ino,
        "mtime": st.st_mtime_ns, "ctime": st.st_ctime_ns, "xattrs": xattrs(path),
    }
    if kind == stat.S_IFREG:
        picture["size"] = st.st_size
        picture["content"] = content_digest(path, st.st_size)
    elif kind == stat.S_IFLNK:
        picture["target"] = os.readlink(path)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        picture["device"] = st.st_rdev
    return picture


def picture_tree(root):
    """{path below root: picture}; the root itself is under ''."""
    pictures = {"": picture_of(root)}
    pending = [root]
    while pending:
        folder = pending.pop()
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            pictures[os.path.relpath(path, root)] = picture_of(path)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                pending.append(path)
    return pictures


def differences(before, after, limit=10):
    """Lines that tell two pictures of a tree apart; none if they are the same."""
    lines = []
    for name in sorted(set(before) | set(after)):
        if name not in after:
            lines.append(f"{name!r} is gone")
        elif name not in before:
            lines.append(f"{name!r} has appeared")
        else:
            for field in before[name]:
                was, now = before[name][field], after[name].get(field)
                if was != now:
                    lines.append(f"{name!r}: {field} was {was!r}, is {now!r}")
    return lines[:limit] + ([f"... and {len(lines) - limit} more"] if len(lines) > limit else [])
