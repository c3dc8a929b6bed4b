"""Replica mounts (b), which keep the names of the volume themselves, beside one that writes (a)."""
import errno
import mmap
import os
import random
import signal
import socket
import stat
import struct
import threading
import time

from cache_cases import drop_pages
from company import VOLUME, Company, put, take
from suite import case
from tree import differences, picture_tree
from waiting import TookTooLong, wait_until

PAGE = 4096
SEEN_SECONDS = 20           # on a busy machine; some milliseconds on others
FOLDER = "replica"


def beside(test, server=(), more=(), address=None):
    """Sets a and b of the test to a mount that writes and a replica."""
    company = Company(test.site, 1, server=server)
    company.options = ["--replica", "--replica-dir", test.site.path(FOLDER), *more]
    company.join("mount-b", address=address)
    test.a, test.b = company.points
    return company


def free_address():
    """A port that nobody has, which a server keeps when it is started again."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def end(test, company):
    test.equal(company.problems(), [], "what is wrong at the end")


def settle(folder):
    """All that was written below it is stored, and the server knows it."""
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def put_stored(path, data):
    put(path, data)
    settle(os.path.dirname(path))


def put_at(path, data, at):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, data, at)
    os.fsync(fd)
    os.close(fd)


def tried(function, *args):
    """What it returns, or the number of its error."""
    try:
        return function(*args)
    except OSError as error:
        return error.errno


def seen(test, wanted, function, *args, what="", seconds=SEEN_SECONDS):
    """That the replica comes to show it."""
    last = []

    def good():
        last[:] = [tried(function, *args)]
        return last[0] == wanted

    try:
        wait_until(good, seconds, what)
    except TookTooLong:
        pass
    return test.equal(last[0], wanted, what)


def whole_sizes(folder):
    """Of the large files in a cache directory that are there wholly, and synced: what their maps say (src/cache/files.c)."""
    sizes = []
    for at, _, names in os.walk(folder):
        for name in names:
            if name.startswith("m-"):
                with open(os.path.join(at, name), "rb") as f:
                    header = f.read(80)
                flags, size = struct.unpack_from("<I", header, 28)[0], struct.unpack_from("<Q", header, 48)[0]
                sizes += [size] if flags & 1 else []
    return sizes


def size_of(path):
    return os.stat(path).st_size


def alike(test, a, b, what, seconds=60):
    """That the two folders come to hold the same, to the last byte and attribute."""
    settle(a)
    last = []

    def same():
        try:
            last[:] = [differences(picture_tree(a), picture_tree(b))]
        except OSError as error:            # it changes while it is looked at
            last[:] = [str(error)]
        return not last[0]

    try:
        wait_until(same, seconds, what)
    except TookTooLong:
        pass
    test.equal(last[0] or None, None, what)


@case(seconds=120, only="epochfs")
def changes_are_seen_though_the_kernel_keeps_everything(test):
    company = beside(test)
    a, b = test.a, test.b
    test.equal(tried(os.stat, f"{b}/f"), errno.ENOENT, "a name that is not there, which the kernel keeps")
    put_stored(f"{a}/f", b"one")
    seen(test, b"one", take, f"{b}/f", what="a new file")
    for turn in range(20):
        data = b"%d" % turn * 5000
        put_stored(f"{a}/f", data)
        seen(test, data, take, f"{b}/f", what=f"overwritten, turn {turn}")
    os.chmod(f"{a}/f", 0o640)
    seen(test, 0o640, lambda: stat.S_IMODE(os.stat(f"{b}/f").st_mode), what="its mode")
    os.setxattr(f"{a}/f", "user.x", b"y")
    seen(test, b"y", os.getxattr, f"{b}/f", "user.x", what="an attribute")
    os.truncate(f"{a}/f", 7)
    settle(a)
    seen(test, 7, size_of, f"{b}/f", what="its size")
    seen(test, data[:7], take, f"{b}/f", what="what is left of it")
    os.rename(f"{a}/f", f"{a}/g")
    seen(test, errno.ENOENT, os.stat, f"{b}/f", what="its old name")
    seen(test, data[:7], take, f"{b}/g", what="its new name")
    os.mkdir(f"{a}/d")
    os.rename(f"{a}/g", f"{a}/d/g")
    seen(test, ["g"], os.listdir, f"{b}/d", what="a directory")
    os.link(f"{a}/d/g", f"{a}/h")
    seen(test, 2, lambda: os.stat(f"{b}/d/g").st_nlink, what="its links")
    os.unlink(f"{a}/h")
    seen(test, 1, lambda: os.stat(f"{b}/d/g").st_nlink, what="its links after that")
    os.symlink("d/g", f"{a}/s")
    seen(test, data[:7], take, f"{b}/s", what="a symbolic link")
    os.unlink(f"{a}/d/g")
    os.rmdir(f"{a}/d")
    seen(test, ["s"], lambda: sorted(os.listdir(b)), what="what is left")
    end(test, company)


@case(seconds=120, only="epochfs")
def it_cannot_be_written_to_and_counts_as_nobody(test):
    company = beside(test)
    a, b = test.a, test.b
    put_stored(f"{a}/f", b"x")
    seen(test, b"x", take, f"{b}/f", what="the file")
    for call, args in ((os.unlink, ("f",)), (os.mkdir, ("d",)), (os.truncate, ("f", 0)), (os.rename, ("f", "g"))):
        test.equal(tried(call, *[f"{b}/{w}" if isinstance(w, str) else w for w in args]), errno.EROFS, call.__name__)
    # One that is alone makes files without asking: thousands a second, however long a call takes.
    before = company.server.json("status")["batch"]
    for k in range(2000):
        os.close(os.open(f"{a}/f{k}", os.O_WRONLY | os.O_CREAT))
    settle(a)
    test.true(company.server.json("status")["batch"] - before < 1000, "files are made under the lease, many in a batch")
    seen(test, 2001, lambda: len(os.listdir(b)), what="all of them")
    end(test, company)


@case(seconds=120, only="epochfs")
def what_is_mapped_and_open_follows(test):
    company = beside(test)
    a, b = test.a, test.b
    put_stored(f"{a}/f", b"0" * 3 * PAGE)
    seen(test, 3 * PAGE, size_of, f"{b}/f", what="the file")
    fd = os.open(f"{b}/f", os.O_RDONLY)
    with mmap.mmap(fd, 3 * PAGE, prot=mmap.PROT_READ) as mapped:
        for turn in range(30):
            at, data = test.rng.randrange(3 * PAGE - 5), b"%05d" % turn
            put_at(f"{a}/f", data, at)
            seen(test, data, os.pread, fd, 5, at, what=f"turn {turn}: read")
            seen(test, data, lambda: mapped[at:at + 5], what=f"turn {turn}: mapped")
    os.close(fd)
    end(test, company)


@case(seconds=120, only="epochfs")
def attributes_that_are_looked_up_while_they_change_do_not_stay_old(test):
    """The kernel is told of a change while it makes the inode of it."""
    company = beside(test)
    a, b = test.a, test.b
    count = 200
    for k in range(count):
        put(f"{a}/f{k}", b"")
    settle(a)
    seen(test, count, lambda: len(os.listdir(b)), what="the files")
    stop = threading.Event()

    def look():
        rng = random.Random(1)
        while not stop.is_set():
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
                f.write("2")
            for _ in range(100):
                tried(os.stat, f"{b}/f{rng.randrange(count)}")
            tried(lambda: [e.stat() for e in os.scandir(b)])

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(1, 40):
        for k in range(0, count, 4):
            os.chmod(f"{a}/f{k}", 0o400 + turn % 64)
    stop.set()
    for thread in threads:
        thread.join()
    for k in range(0, count, 4):
        wanted = stat.S_IMODE(os.stat(f"{a}/f{k}").st_mode)
        seen(test, wanted, lambda name=f"{b}/f{k}": stat.S_IMODE(os.stat(name).st_mode), what=f"mode of f{k}", seconds=5)
    end(test, company)


class Changer:
    """Changes a tree at random."""

    def __init__(self, root, rng):
        self.root, self.rng, self.count = root, rng, 0
        self.kinds = [self.make, self.make, self.write, self.write, self.truncate, self.remove, self.rename, self.link,
                      self.directory, self.symlink, self.mode, self.xattr, self.rename_directory]

    def directories(self):
        return [where for where, _, _ in os.walk(self.root)]

    def files(self):
        return [os.path.join(where, n) for where, _, names in os.walk(self.root) for n in names]

    def place(self):
        self.count += 1
        return os.path.join(self.rng.choice(self.directories()), f"n{self.rng.randrange(40)}")

    def missing(self):
        return os.path.join(self.root, "missing")

    def file(self):
        files = [f for f in self.files() if not os.path.islink(f)]
        return self.rng.choice(files) if files else self.missing()

    def make(self):
        put(self.place(), self.rng.randbytes(self.rng.choice((0, 10, 5000, 200_000))))

    def write(self):
        fd = os.open(self.file(), os.O_WRONLY)
        os.pwrite(fd, self.rng.randbytes(self.rng.randrange(1, 9000)), self.rng.randrange(100_000))
        os.close(fd)

    def truncate(self):
        os.truncate(self.file(), self.rng.randrange(100_000))

    def remove(self):
        os.unlink(self.rng.choice(self.files() or [self.missing()]))

    def rename(self):
        os.rename(self.file(), self.place())

    def link(self):
        os.link(self.file(), self.place())

    def directory(self):
        os.mkdir(self.place())

    def symlink(self):
        os.symlink("target" * self.rng.randrange(1, 20), self.place())

    def mode(self):
        os.chmod(self.file(), self.rng.randrange(0o1000))

    def xattr(self):
        os.setxattr(self.file(), f"user.{self.rng.randrange(3)}", self.rng.randbytes(self.rng.randrange(300)))

    def rename_directory(self):
        os.rename(self.rng.choice(self.directories()[1:] or [self.missing()]), self.place())

    def play(self, turns):
        for _ in range(turns):
            try:
                self.rng.choice(self.kinds)()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EINVAL,
                                       errno.ELOOP):
                    raise


def look_around(root, rng, stop, wrong):
    """Walks and reads while it changes; only what can be the past is an error one may get."""
    while not stop.is_set():
        try:
            for where, _, names in os.walk(root):
                for name in names:
                    path = os.path.join(where, name)
                    os.lstat(path)
                    if rng.random() < 0.3 and not os.path.islink(path):
                        take(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP):
                wrong.append(str(error))


@case(seconds=300, only="epochfs")
def it_becomes_what_the_volume_is_whatever_happens_to_that(test):
    company = beside(test)
    stop, wrong = threading.Event(), []
    lookers = [threading.Thread(target=look_around, args=(test.b, random.Random(k), stop, wrong)) for k in range(2)]
    for thread in lookers:
        thread.start()
    changer = Changer(test.a, test.rng)
    try:
        for turn in range(4):
            changer.play(150)
            alike(test, test.a, test.b, f"after turn {turn}")
    finally:
        stop.set()
        for thread in lookers:
            thread.join()
    test.equal(wrong, [], "errors of those who looked on")
    end(test, company)


@case(seconds=300, only="epochfs")
def it_catches_up_with_a_server_that_was_killed(test):
    company = beside(test)
    changer = Changer(test.a, test.rng)
    for turn in range(5):
        changer.play(60)
        company.server.kill()
        company.server.start()
        changer.play(60)
        alike(test, test.a, test.b, f"after turn {turn}")
    end(test, company)


@case(seconds=180, only="epochfs")
def it_was_stopped_while_the_server_forgot_and_copies_what_differs(test):
    """A server that is started again has no write sets of before; what the replica misses it must find by comparing."""
    company = beside(test)
    changer, replica = Changer(test.a, test.rng), company.mounts[1]
    changer.play(100)
    alike(test, test.a, test.b, "before")
    held = {path: tried(os.stat, path) for path in (os.path.join(test.b, name) for name in os.listdir(test.b))}
    test.true(held, "what the kernel keeps")
    for turn in range(3):
        os.kill(replica.process.pid, signal.SIGSTOP)
        try:
            changer.play(100)
            settle(test.a)
            company.server.kill()
            company.server.start()
            changer.play(20)
        finally:
            os.kill(replica.process.pid, signal.SIGCONT)
        alike(test, test.a, test.b, f"after turn {turn}")
    test.true(replica.log_text().count("the namespace was copied") > 1, "it has copied again")
    end(test, company)


@case(seconds=300, only="epochfs")
def it_is_killed_and_mounted_again(test):
    company = beside(test)
    changer, replica = Changer(test.a, test.rng), company.mounts[1]
    for turn in range(4):
        changer.play(100)
        replica.kill()
        replica.wait_dead()
        changer.play(100)
        replica.start()
        alike(test, test.a, test.b, f"after turn {turn}")
    end(test, company)


@case(seconds=180, only="epochfs")
def without_the_server_it_goes_on(test):
    address = free_address()                # by TCP: else contents are read from the server's own disk
    company = beside(test, server=("--listen", address), address=address,
                     more=("--cache-dir", test.site.path("replica-cache"), "--timeout", "2s"))
    a, b, replica = test.a, test.b, company.mounts[1]
    os.mkdir(f"{a}/d")
    for k in range(50):
        put(f"{a}/d/f{k}", b"%d" % k * 3000)
    large = test.rng.randbytes(20 << 20)
    put(f"{a}/large", large)
    settle(a)
    seen(test, 50, lambda: len(os.listdir(f"{b}/d")), what="the files")
    for k in range(25):
        test.equal(take(f"{b}/d/f{k}"), b"%d" % k * 3000, f"f{k}")
    seen(test, len(large), size_of, f"{b}/large", what="the large file")
    test.true(take(f"{b}/large") == large, "the large file")
    seen(test, [len(large)], whole_sizes, test.site.path("replica-cache"), what="that it is cached")
    company.mounts[0].umount()
    company.server.stop()

    def serves(when):
        test.equal(sorted(os.listdir(f"{b}/d")), sorted(f"f{k}" for k in range(50)), f"names {when}")
        test.equal([size_of(f"{b}/d/f{k}") for k in range(50)], [len(b"%d" % k * 3000) for k in range(50)], f"sizes {when}")
        test.equal(tried(os.stat, f"{b}/d/none"), errno.ENOENT, f"what is not there {when}")
        for k in range(25):
            test.equal(take(f"{b}/d/f{k}"), b"%d" % k * 3000, f"f{k} {when}")
        drop_pages()
        test.true(take(f"{b}/large") == large, f"the large file {when}")

    serves("without the server")
    replica.umount()
    replica.start()
    test.true("the server cannot be reached; the replica" in replica.log_text(since_start=True), "the log says how it is served")
    serves("mounted without the server")
    replica.kill()
    replica.wait_dead()
    replica.start()
    serves("killed, and mounted without the server")
    company.server.start()
    company.mounts[0].start()
    put_stored(f"{a}/d/new", b"new")
    seen(test, b"new", take, f"{b}/d/new", what="what came after the server was back")
    end(test, company)


@case(seconds=120, only="epochfs")
def past_its_bound_it_serves_nothing(test):
    company = beside(test, more=("--replica-max-lag", "3s", "--timeout", "1s"))
    a, b = test.a, test.b
    put_stored(f"{a}/f", b"x")
    seen(test, b"x", take, f"{b}/f", what="the file")
    company.server.kill()
    test.equal(tried(take, f"{b}/f"), b"x", "within the bound")
    seen(test, errno.EIO, size_of, f"{b}/f", what="past it")
    test.true("serves nothing" in company.mounts[1].log_text(), "the log says so")

    def status():
        told = company.server.json("status", b)
        return told["replica"]["following"], told["connected"], told["replica"]["max_lag_ms"], told["replica"]["age_ms"] >= 3000

    seen(test, (False, False, 3000, True), status, what="its status")
    company.server.start()
    seen(test, 1, size_of, f"{b}/f", what="with the server back")
    seen(test, (True, True, 3000, False), status, what="its status after that")
    test.true("Replica" in company.server.cli("status", b)[1], "shown to people")
    end(test, company)


@case(seconds=120, only="epochfs")
def a_second_volume_never_shows(test):
    company = beside(test)
    company.server.volume("secret")
    other = company.server.mount("secret", name="mount-secret")
    marker = "very-secret-name"
    for k in range(300):
        put(f"{other.point}/{marker}-{k}", b"secret")
    settle(other.point)
    put_stored(f"{test.a}/f", b"x")
    seen(test, b"x", take, f"{test.b}/f", what="the file")
    company.mounts[1].umount()
    with open(test.site.path(FOLDER, VOLUME, "data.mdb"), "rb") as f:
        test.true(marker.encode() not in f.read(), "names of the other volume are not in the file")
    company.mounts[1].start()
    test.equal(os.listdir(test.b), ["f"], "names")
    test.equal(other.umount(), 0, "the other mount's end")
    end(test, company)


@case(seconds=120, only="epochfs")
def what_is_kept_is_thrown_away_where_it_is_of_no_use(test):
    company = beside(test)
    replica, file = company.mounts[1], test.site.path(FOLDER, VOLUME, "data.mdb")
    put_stored(f"{test.a}/f", b"x")
    replica.umount()
    with open(file, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        for at in range(0, size, 512):
            f.seek(at)
            f.write(b"garbage!")
    replica.start()
    seen(test, b"x", take, f"{test.b}/f", what="from a damaged file")
    test.true("is made anew" in replica.log_text(since_start=True), "the log says so")
    replica.umount()
    company.mounts[0].umount()
    company.server.cli("volume", "delete", VOLUME, "--yes")
    company.server.volume(VOLUME)
    company.mounts[0].start()
    put_stored(f"{test.a}/g", b"y")
    replica.start()
    test.equal(os.listdir(test.b), ["g"], "of another volume of that name")
    second = company.server.mount(VOLUME, name="mount-c", options=company.options, start=False)
    second.start(ready=False)
    wait_until(lambda: not second.alive(), 20, "a second mount on the same file to end")
    test.true("in use by another mount" in second.log_text(), "the log says why")
    end(test, company)


@case(seconds=180, only="epochfs")
def deleted_objects_stay_while_there_are_replicas(test):
    """A reader that has a file open, though it is deleted elsewhere, and the server frees without grace otherwise."""
    company = beside(test, server=("--grace", "0s"), more=("--cache-memory", "8MiB"))
    a, b = test.a, test.b
    data = test.rng.randbytes(300_000)
    put_stored(f"{a}/f", data)
    seen(test, len(data), size_of, f"{b}/f", what="the file")
    fd = os.open(f"{b}/f", os.O_RDONLY)
    test.equal(os.pread(fd, 10, 0), data[:10], "its first bytes")
    os.unlink(f"{a}/f")
    seen(test, errno.ENOENT, os.stat, f"{b}/f", what="its name")
    company.server.cli("trash", "empty", VOLUME, "--yes", check=False)
    time.sleep(2)                            # for the server to free it, were it to
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("1")
    test.equal(os.pread(fd, len(data), 0), data, "what was deleted, read on")
    os.close(fd)
    end(test, company)
