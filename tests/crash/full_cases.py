"""A full disk under the server: ENOSPC to the writer, nothing corrupted, all goes on when there is space again."""
import collections
import errno
import os

import units
from damage_cases import is_whole, write_file
from disks import MiB, Disk, run
from kill_cases import fsck_is_clean
from mounting import writes_back
from state import read_file
from suite import case
from waiting import TookTooLong, wait_until

FILE = 2 * MiB
DISK = 128          # MiB
SPACE_SECONDS = 60  # until freed space can be written again


def make_disk(test, kind, size=DISK):
    """A small file system of its own; the keeper unmounts it in the end."""
    point = test.site.path("disk")
    if kind == "tmpfs":
        os.mkdir(point)
        run("mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", point)
    else:
        Disk(point, test.site.path("disk.image"), size)
    return point


def free_bytes(point):
    st = os.statvfs(point)
    return st.f_bavail * st.f_frsize


def fill(point):
    """Takes every byte that is left on it; returns the path of what takes them."""
    path = os.path.join(point, "ballast")
    with open(path, "wb", buffering=0) as f:
        for size in (MiB, 4096):
            try:
                while True:
                    f.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        os.fsync(f.fileno())
    return path


def write_until_full(test, mount, first, most=300):
    """Files one after the other until one fails.  Returns ({name: file} of those synced, errno, the failing name)."""
    synced = {}
    for k in range(first, first + most):
        name = f"file-{k}"
        try:
            write_file(os.path.join(mount.point, name), k, FILE)
        except OSError as error:
            return synced, error.errno, name
        synced[name] = k
    return synced, 0, None


def all_whole(test, mount, synced, when):
    bad = [name for name, file in synced.items() if not is_whole(os.path.join(mount.point, name), file, FILE)]
    test.equal(bad, [], f"synced files that are not whole {when}")


def prefix_only(test, mount, name, file):
    """The file whose write failed may be there in part, with nothing else in it."""
    path = os.path.join(mount.point, name)
    if os.path.exists(path):
        data = read_file(path)
        test.true(units.difference(data, file) is None, f"{name} holds a part of what was written: {units.difference(data, file)}")


def works_again(mount, disk, name, file):
    problems = []

    def write():
        try:
            write_file(os.path.join(mount.point, name), file, FILE)
            return True
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EIO):
                raise
            problems.append(errno.errorcode[error.errno])
            return False
    try:
        wait_until(write, SPACE_SECONDS, "a write to work again")
    except TookTooLong as error:
        raise TookTooLong(f"{error}; it got {dict(collections.Counter(problems))}; free: {free_bytes(mount.point)} bytes in the mount, "
                          f"{free_bytes(disk)} on the disk; not uploaded: {kept_names(mount.server)}") from None


def refused_or_kept(test, write, what):
    """Whether an fsync worked though the server's disk is full.  With write-back it may: the local disk has the data, until it can be
    uploaded."""
    try:
        write()
        problem = None
    except OSError as error:
        problem = error.errno
    if not writes_back() or problem is not None:
        test.equal(problem, errno.ENOSPC, f"what the writer of {what} gets")
    return problem is None


def kept_names(server):
    return {entry["path"] for entry in server.json("writeback", "list")}


def synced_now(fd):
    """The first fsync may still tell of an upload that was tried in vain while the disk was full."""
    try:
        os.fsync(fd)
        return True
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def check_full_by_us(test, kind):
    disk = make_disk(test, kind)
    server = test.site.server(data=os.path.join(disk, "data"), options=["--grace", "none"])
    server.volume("v", "--retention", "none")
    mount = server.mount("v")
    synced, number, last = write_until_full(test, mount, 1)
    test.equal(number, errno.ENOSPC, "what the writer gets")
    test.true(len(synced) * FILE > DISK * MiB * 0.6, f"most of the disk could be used ({len(synced) * FILE // MiB} MiB of {DISK})")
    test.fails(errno.ENOSPC, write_file, os.path.join(mount.point, "more"), 999, FILE, what="another file")
    all_whole(test, mount, synced, "on a full disk")
    prefix_only(test, mount, last, int(last.split("-")[1]))
    test.true(server.alive() and mount.alive(), "server and mount live on")
    server.kill()
    server.start()
    mount.remount()
    all_whole(test, mount, synced, "after a crash on a full disk")
    fsck_is_clean(test, server, "on a full disk")
    for name in sorted(synced)[::2]:
        test.works(os.unlink, os.path.join(mount.point, name), what="a delete on a full disk")
        del synced[name]
    works_again(mount, disk, "again", 5000)
    test.true(is_whole(os.path.join(mount.point, "again"), 5000, FILE), "a file written with the space that was freed is whole")
    more, number, _ = write_until_full(test, mount, 2000)
    test.equal(number, errno.ENOSPC, "what the writer gets the second time")
    test.true(len(more) > 5, f"the space that was freed can be used ({len(more)} files)")
    synced.update(more)
    mount.remount()
    all_whole(test, mount, synced, "at the end")
    fsck_is_clean(test, server, "at the end")


@case(seconds=300)
def a_disk_filled_through_the_mount_gives_enospc_and_recovers(test):
    check_full_by_us(test, "ext4")


@case(seconds=300)
def a_tmpfs_filled_through_the_mount_gives_enospc_and_recovers(test):
    check_full_by_us(test, "tmpfs")


@case(seconds=300)
def a_disk_filled_by_somebody_else_gives_enospc_and_recovers(test):
    """Not one byte is left: neither for objects nor for metadata."""
    disk = make_disk(test, "ext4")
    server = test.site.server(data=os.path.join(disk, "data"), options=["--grace", "none"])
    server.volume("v", "--retention", "none")
    mount = server.mount("v")
    synced = {f"file-{k}": k for k in range(1, 6)}
    for name, file in synced.items():
        write_file(os.path.join(mount.point, name), file, FILE)
    fd = test.open(os.path.join(mount.point, "open"), os.O_RDWR | os.O_CREAT)
    os.write(fd, units.stream(77, 0, FILE))
    os.fsync(fd)
    ballast = fill(disk)
    test.true(free_bytes(disk) < 65536, f"the disk is full ({free_bytes(disk)} bytes are left)")

    def append():
        os.pwrite(fd, units.stream(77, FILE, FILE), FILE)
        os.fsync(fd)

    kept = {}
    if refused_or_kept(test, lambda: write_file(os.path.join(mount.point, "no"), 99, FILE), "a file on a full disk"):
        kept["no"] = 99
    if refused_or_kept(test, append, "an open file"):
        test.true("/open" in kept_names(server), f"it is named as not uploaded: {kept_names(server)}")
    test.true(kept_names(server) >= {f"/{name}" for name in kept}, f"{kept} are named as not uploaded: {kept_names(server)}")
    synced.update(kept)
    all_whole(test, mount, synced, "on a full disk")
    test.true(server.alive() and mount.alive(), "server and mount live on")
    server.kill()
    server.start(ready=False)
    wait_until(lambda: not server.alive() or server.answers(), 60, "the server to start on a full disk, or to say why not")
    test.true(server.alive(), f"it starts on a full disk: {server.log_text(since_start=True)}")
    os.unlink(ballast)
    if not server.alive():
        server.start()
    works_again(mount, disk, "again", 5000)
    os.pwrite(fd, units.stream(77, FILE, FILE), FILE)
    wait_until(lambda: synced_now(fd), SPACE_SECONDS, "fsync to work again")
    test.close(fd)
    mount.remount()
    synced["again"] = 5000
    all_whole(test, mount, synced, "at the end")
    test.equal(kept_names(server), set(), "what is not uploaded at the end")
    test.true(is_whole(os.path.join(mount.point, "open"), 77, 2 * FILE), "the file that was open is whole")
    fsck_is_clean(test, server, "at the end")
