"""A mount with --writeback (a): what was synced is on its disk only, and others get it, or a clear error, never old data."""
import contextlib
import ctypes
import errno
import os
import re
import signal

from company import put, take
from mounting import over_tcp
from suite import case
from waiting import wait_until

MIB = 1 << 20
SIZE = 12 * MIB + 12_345
SLOW = ("--upload-limit=1KiB",)      # unless somebody waits


class Writeback:
    """A server, a mount a with a write-back directory, and others."""

    def __init__(self, test, *volume, options=SLOW, name=""):
        self.test = test
        self.server = test.site.server(f"server{name}")
        self.server.volume("v", *volume)
        self.directory = test.site.path(f"writeback{name}")
        self.a = self.server.mount("v", "a", options=[f"--writeback={self.directory}", *options])

    def other(self, name="b", options=()):
        return self.server.mount("v", name, options=list(options))

    def left(self):
        """Paths that are not uploaded."""
        return sorted(m["path"] for m in self.server.json("writeback", "list"))

    def spools(self):
        return sorted(os.path.join(folder, n) for folder, _, names in os.walk(self.directory) for n in names
                      if re.fullmatch("[0-9a-f]{16}[.][0-9a-f]{16}", n))

    def back(self):
        self.a.start()

    def uploaded(self):
        """Unmounting uploads what is left."""
        self.test.equal(self.a.umount(), 0, "exit code of the mount")
        self.test.equal((self.left(), self.spools()), ([], []), "what is left")

    def fsck(self):
        clean, text = self.server.fsck()
        self.test.true(clean, f"fsck is clean: {text}")


def path_of(mount, name):
    return os.path.join(mount.point, name)


def save(mount, name, data, steps=MIB):
    """As trainers save: a temporary file, synced and renamed."""
    fd = os.open(path_of(mount, name + ".tmp"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for at in range(0, len(data), steps):
        os.write(fd, data[at:at + steps])
    os.fsync(fd)
    os.close(fd)
    os.rename(path_of(mount, name + ".tmp"), path_of(mount, name))


def refused(path):
    try:
        take(path)
        return False
    except OSError as error:
        return error.errno == errno.EIO


@case(seconds=90, only="epochfs")
def another_mount_gets_what_is_not_uploaded_yet(test):
    for kind in ("strict", "relaxed"):
        w = Writeback(test, "--consistency", kind, name=f"-{kind}")
        b, c = w.other(), w.other("c", ["--ro"])
        old, new = test.rng.randbytes(70_000), test.rng.randbytes(SIZE)
        save(w.a, "checkpoint", old)
        for mount in (b, c):
            test.equal(take(path_of(mount, "checkpoint")), old, f"{kind}: the first one on {mount.name}")
        save(w.a, "checkpoint", new)
        test.equal(w.left(), ["/checkpoint"], f"{kind}: what is not uploaded")
        test.equal(take(path_of(w.a, "checkpoint")), new, f"{kind}: on a")
        if kind == "strict":
            test.equal(os.stat(path_of(b, "checkpoint")).st_size, SIZE, "the size on b")
            test.equal(w.left(), ["/checkpoint"], "a stat uploads nothing")
        else:
            wait_until(lambda: os.stat(path_of(c, "checkpoint")).st_size == SIZE, 5, "the new size on c")
            wait_until(lambda: os.stat(path_of(b, "checkpoint")).st_size == SIZE, 5, "the new size on b")
        for mount in (c, b):
            test.true(take(path_of(mount, "checkpoint")) == new, f"{kind}: the new one on {mount.name}")
        w.uploaded()
        w.fsck()
        for mount in (b, c):
            mount.umount()


@case(seconds=90, only="epochfs")
def a_killed_writer_leaves_an_error_and_no_old_data_until_it_is_back(test):
    w = Writeback(test)
    b = w.other()
    old, new = test.rng.randbytes(70_000), test.rng.randbytes(SIZE)
    save(w.a, "checkpoint", old)
    save(w.a, "other", old)
    for name in ("checkpoint", "other"):
        test.equal(take(path_of(b, name)), old, f"{name}, which b has read")
    save(w.a, "checkpoint", new)
    w.a.kill()
    wait_until(lambda: refused(path_of(b, "checkpoint")), 20, "EIO on b")
    test.equal(os.stat(path_of(b, "checkpoint")).st_size, SIZE, "it does not look empty, nor old")
    test.equal(take(path_of(b, "other")), old, "what was uploaded can be read")
    c = w.other("c", ["--ro"])
    test.true(refused(path_of(c, "checkpoint")), "EIO on a read-only mount")
    test.equal(os.stat(path_of(c, "checkpoint")).st_size, SIZE, "the size there")
    for what in (lambda: os.truncate(path_of(b, "checkpoint"), 0), lambda: put(path_of(b, "checkpoint"), b"x")):
        try:
            what()
            test.true(False, "somebody else changed it")
        except OSError as error:
            test.equal(error.errno, errno.EIO, "nobody else changes it")
    log = w.server.log_text()
    test.true("/checkpoint" in log and "write-back directory" in log and w.a.point in log, f"the log says what and who: {log}")
    status = w.server.json("status")["writebacks"]
    test.equal([(s["volume"], s["files"], s["mounted"]) for s in status], [("v", 1, False)], "what status says")
    test.equal(w.server.json("status")["losses"], [], "nothing is lost")
    b.umount()
    d = w.other("d")       # alone, but for the read-only one: it must not take names and contents for known
    test.true(refused(path_of(d, "checkpoint")), "EIO on a mount that came later")
    w.server.kill()
    w.server.start()
    test.true(refused(path_of(d, "checkpoint")), "EIO after the server was killed")
    w.back()
    for mount in (d, c, w.a):
        test.true(take(path_of(mount, "checkpoint")) == new, f"what was synced, on {mount.name}")
    w.uploaded()
    test.equal(w.server.json("status")["writebacks"], [], "what status says afterwards")
    w.fsck()


@case(seconds=120, only="epochfs")
def a_writer_that_is_killed_again_and_again_uploads_in_the_end(test):
    w = Writeback(test, options=())
    files = {f"f{k}": test.rng.randbytes(test.rng.choice([100, 5000, 300_000, 5 * MIB])) for k in range(20)}
    for name, data in files.items():
        save(w.a, name, data)
    for turn in range(6):
        w.a.kill()
        if turn % 2:
            w.server.kill()
            w.server.start()
        w.a.start()
        for name, data in files.items():
            if not take(path_of(w.a, name)) == data:
                test.true(False, f"turn {turn}: {name} is not what was synced")
        name = f"more{turn}"
        files[name] = test.rng.randbytes(3 * MIB)
        save(w.a, name, files[name])
    w.uploaded()
    b = w.other()
    for name, data in files.items():
        test.true(take(path_of(b, name)) == data, f"{name} on another mount")
    w.fsck()


def punch(fd, at, length):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 3, ctypes.c_long(at), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


def change_truncate(path, data, rng):
    os.truncate(path, 0)
    return b""


def change_shorter(path, data, rng):
    os.truncate(path, 5 * MIB + 3)
    return data[:5 * MIB + 3]


def change_longer(path, data, rng):
    os.truncate(path, 15 * MIB)
    return data + bytes(15 * MIB - len(data))


def change_hole(path, data, rng):
    fd = os.open(path, os.O_RDWR)
    punch(fd, 2 * MIB + 5, 3 * MIB)
    os.close(fd)
    return data[:2 * MIB + 5] + bytes(3 * MIB) + data[5 * MIB + 5:]


def change_copy(path, data, rng):
    other = rng.randbytes(3 * MIB)
    put(path + ".source", other)
    source, fd = os.open(path + ".source", os.O_RDONLY), os.open(path, os.O_RDWR)
    done = 0
    while done < len(other):
        done += os.copy_file_range(source, fd, len(other) - done, done, MIB + done)
    os.close(source)
    os.close(fd)
    return data[:MIB] + other + data[4 * MIB:]


def change_small(path, data, rng):
    """Overwrites that stay in memory, synced after they were uploaded, or before."""
    fd = os.open(path, os.O_RDWR)
    for at in (0, 4 * MIB - 50, 9 * MIB + 1):
        piece = rng.randbytes(100)
        os.pwrite(fd, piece, at)
        data = data[:at] + piece + data[at + 100:]
        os.fsync(fd)
    os.close(fd)
    return data


def change_large(path, data, rng):
    fd, piece = os.open(path, os.O_RDWR), rng.randbytes(3 * MIB)
    for at in range(0, len(piece), MIB):
        os.pwrite(fd, piece[at:at + MIB], 3 * MIB + 77 + at)
    os.fsync(fd)
    os.close(fd)
    return data[:3 * MIB + 77] + piece + data[6 * MIB + 77:]


def change_truncate_and_write(path, data, rng):
    fd, piece = os.open(path, os.O_RDWR | os.O_TRUNC), rng.randbytes(200_000)
    os.write(fd, piece)
    os.fsync(fd)
    os.close(fd)
    return piece


def change_append(path, data, rng):
    fd, piece = os.open(path, os.O_WRONLY | os.O_APPEND), rng.randbytes(500_000)
    os.write(fd, piece)
    os.fsync(fd)
    os.close(fd)
    return data + piece


CHANGES = [change_truncate, change_shorter, change_longer, change_hole, change_copy, change_small, change_large, change_truncate_and_write,
           change_append]


@case(seconds=300, only="epochfs")
def nothing_old_comes_back_over_what_was_done_later(test):
    """Synced data, then another change, which was answered; then the mount is killed."""
    w = Writeback(test)
    for change in CHANGES:
        for settled in (False, True):
            path = path_of(w.a, "f")
            data = test.rng.randbytes(SIZE)
            save(w.a, "f", data)
            if settled:         # then its spool is being uploaded, or done with
                b = w.other(f"b-{change.__name__}")
                test.true(take(path_of(b, "f")) == data, "on b")
                b.umount()
            wanted = change(path, data, test.rng)
            os.utime(path, (1_000_000_000, 1_000_000_000))
            w.a.kill()
            w.back()
            found = take(path)
            test.true(found == wanted, f"{change.__name__}, settled {settled}: {len(found)} of {len(wanted)} bytes, the first difference "
                      f"at {next((k for k, (x, y) in enumerate(zip(found, wanted)) if x != y), None)}")
            test.equal(os.stat(path).st_mtime, 1_000_000_000, f"{change.__name__}: mtime")
            os.unlink(path)
    w.uploaded()
    w.fsck()


@case(seconds=90, only="epochfs")
def what_was_deleted_or_replaced_stays_so(test):
    w = Writeback(test)
    data = [test.rng.randbytes(SIZE) for _ in range(3)]
    save(w.a, "deleted", data[0])
    save(w.a, "replaced", data[1])
    fd = os.open(path_of(w.a, "open"), os.O_CREAT | os.O_RDWR)
    os.write(fd, data[0][:3 * MIB])
    os.fsync(fd)
    os.unlink(path_of(w.a, "open"))
    test.equal(os.pread(fd, 3 * MIB, 0), data[0][:3 * MIB], "an open file without a name")
    os.unlink(path_of(w.a, "deleted"))
    save(w.a, "replaced", data[2])
    os.link(path_of(w.a, "replaced"), path_of(w.a, "linked"))
    w.a.kill()
    with contextlib.suppress(OSError):
        os.close(fd)
    w.back()
    test.equal(sorted(os.listdir(w.a.point)), ["linked", "replaced"], "names")
    test.true(take(path_of(w.a, "linked")) == data[2], "the newest")
    w.uploaded()
    w.fsck()


@case(seconds=90, only="epochfs")
def a_writer_that_was_cut_off_keeps_its_files_for_itself(test):
    w = Writeback(test)
    b = w.other("b", ["--timeout", "30s"])
    data = test.rng.randbytes(SIZE)
    save(w.a, "f", data)
    w.a.process.send_signal(signal.SIGSTOP)
    test.true(refused(path_of(b, "f")), "EIO while it is silent")
    w.a.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not refused(path_of(b, "f")), 30, "b to read it")
    test.true(take(path_of(b, "f")) == data, "what was synced")
    w.uploaded()


def refuses_to_mount(test, mount, *words):
    mount.start(ready=False)
    test.true(mount.wait_exit(30, "refuse") != 0, "the exit code of a mount that is refused")
    text = mount.log_text(since_start=True)
    for word in words:
        test.true(word in text, f"it says {word!r}: {text}")


@case(seconds=90, only="epochfs")
def data_that_is_lost_or_damaged_is_said_and_can_be_given_up(test):
    w = Writeback(test)
    for how in ("cut", "flipped", "gone"):
        save(w.a, "f", test.rng.randbytes(SIZE))
        w.a.kill()
        spool = w.spools()[0]
        with open(spool, "r+b") as f:
            good = f.read()
            if how == "cut":
                f.truncate(5 * MIB)
            else:
                f.seek(3 * MIB)
                f.write(bytes([good[3 * MIB] ^ 1]))
        if how == "gone":
            os.rename(spool, test.site.path("aside"))
        refuses_to_mount(test, w.a, w.directory, *(["drop"] if how == "gone" else ["damaged", "docs/operations.md"]))
        b = w.other(f"b-{how}")
        test.true(refused(path_of(b, "f")), f"{how}: nobody sees old data")
        if how == "cut":        # as it was, it goes on
            with open(spool, "wb") as f:
                f.write(good)
        else:
            code, out, err = w.server.cli("writeback", "drop", w.directory, "--yes")
            test.true("1 file can be used again" in out, f"what drop says: {out} {err}")
            test.true(not refused(path_of(b, "f")), f"{how}: it can be read again")
            if not over_tcp():  # where that takes five minutes
                wait_until(lambda: not [s for s in w.server.json("status")["sessions"] if s["mount_point"] == w.a.point], 20, "the mount to be forgotten")
        w.back()
        test.true(how != "cut" or len(take(path_of(b, "f"))) == SIZE, "all is there")
        test.equal(w.left(), [], "what is left")
        b.umount()
        os.unlink(path_of(w.a, "f"))
    w.uploaded()
    w.fsck()


@case(seconds=60, only="epochfs")
def one_directory_is_for_one_mount_and_a_full_one_is_no_obstacle(test):
    w = Writeback(test, options=("--writeback-size=1MiB",))
    second = w.server.mount("v", "second", options=[f"--writeback={w.directory}"], start=False)
    refuses_to_mount(test, second, w.directory, "another mount")
    data = test.rng.randbytes(SIZE)
    save(w.a, "f", data)
    save(w.a, "g", data[:300_000])
    w.a.kill()
    w.back()
    test.true(take(path_of(w.a, "f")) == data and take(path_of(w.a, "g")) == data[:300_000], "what was synced")
    code, _, err = w.server.cli("writeback", "drop", w.directory, "--yes", check=False)
    test.true(code == 1 and "unmount it first" in err, f"a mount that is there is not given up: {err}")
    w.uploaded()
    w.fsck()


@case(seconds=60, only="epochfs")
def unmounting_uploads_everything(test):
    w = Writeback(test)
    data = test.rng.randbytes(SIZE)
    save(w.a, "f", data)
    test.equal(w.left(), ["/f"], "what is not uploaded")
    w.uploaded()
    b = w.other()
    test.true(take(path_of(b, "f")) == data, "on b")
    w.fsck()


@case(seconds=120, only="epochfs")
def a_replica_never_shows_a_renamed_checkpoint_as_empty_or_old(test):
    w = Writeback(test)
    replica = w.other("r", ["--replica", "--replica-dir", test.site.path("replica"), "--timeout=3s"])
    seen = path_of(replica, "checkpoint")
    old, new = test.rng.randbytes(70_000), test.rng.randbytes(SIZE)
    save(w.a, "checkpoint", old)
    take(path_of(w.other(), "checkpoint"))        # which makes it upload
    wait_until(lambda: os.path.exists(seen) and not w.left(), 30, "it is uploaded and seen")
    test.equal(take(seen), old, "what the replica has at first")
    save(w.a, "checkpoint", new)
    test.equal(w.left(), ["/checkpoint"], "what is not uploaded")
    wait_until(lambda: os.stat(seen).st_size == SIZE, 30, "the replica knows its size")
    test.true(refused(seen), "reading it fails, as its content is not there")
    test.equal([e.stat().st_size for e in os.scandir(replica.point)], [SIZE], "its size in a listing")
    test.equal(take(path_of(w.other("c"), "checkpoint")), new, "what another mount reads")
    wait_until(lambda: not w.left(), 30, "it is uploaded")
    wait_until(lambda: not refused(seen), 30, "the replica has it")
    test.equal(take(seen), new, "what the replica reads then")
    w.uploaded()
    w.fsck()


@case(seconds=120, only="epochfs")
def umount_says_what_it_leaves_behind(test):
    w = Writeback(test, options=[*SLOW, "--timeout=2s"])
    data = test.rng.randbytes(MIB)
    save(w.a, "checkpoint", data)
    w.server.kill()
    code, _, said = test.site.run([test.site.binary, "umount", w.a.point], 60, check=False)
    w.a.wait_exit(60, "end after umount")
    test.equal(code, 1, "exit code of epochfs umount")
    test.true("1 file," in said and w.directory in said, f"it says what is left: {said}")
    w.server.start()
    test.equal(w.left(), ["/checkpoint"], "what is not uploaded")
    w.a.options.remove("--timeout=2s")      # over TCP the server waits ten seconds for the mount that it remembers
    w.back()
    test.equal(test.site.run([test.site.binary, "umount", w.a.point], 60, check=False), (0, "", ""), "epochfs umount when all is uploaded")
    w.a.wait_exit(60, "end after umount")
    test.equal((w.left(), w.spools()), ([], []), "what is left then")
    w.back()
    test.equal(take(path_of(w.a, "checkpoint")), data, "what is there")
    w.uploaded()
    w.fsck()
