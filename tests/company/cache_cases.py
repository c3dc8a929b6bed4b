"""Mounts with a cache on the local disk: it never shows, but in what the server is asked for."""
import os
import random
import re
import shutil
import subprocess

from company import Company, put, take
from suite import case

ADDRESS = "127.0.0.1"


class Cached(Company):
    """Mounts over TCP, so that objects are fetched and not read from the server's own files."""

    def __init__(self, test, mounts=1, size="1GiB", ro=False, folder=None, extra=()):
        self.folder = folder or os.path.join(test.site.base, "cache")
        options = ["--cache-dir", self.folder, "--cache-size", size, "--cache-min-free", "1MiB", *(["--ro"] if ro else []), *extra]
        super().__init__(test.site, 0, volume=("--block-size", "1MiB"), server=("--listen", f"{ADDRESS}:0"), options=options)
        self.address = self.tcp_address()
        for k in range(mounts):
            self.join(f"mount-{'ab'[k]}", address=self.address)

    def tcp_address(self):
        with open(self.server.log, encoding="utf-8") as f:
            return re.findall(ADDRESS + r":\d+", f.read())[-1]

    def again(self):
        """Unmounts all, drops the kernel's pages, mounts all."""
        for mount in self.mounts:
            mount.umount()
        drop_pages()
        for mount in self.mounts:
            mount.start()

    def asked(self):
        """(reads of the cache, hits) as the mounts told when they ended."""
        text = ""
        for mount in self.mounts:
            with open(mount.log, encoding="utf-8") as f:
                text += f.read()
        found = re.findall(r"of (\d+) reads of the cache (\d+) were hits", text)
        return tuple(int(n) for n in found[-1])


def drop_pages():
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("3")


def data_set(test, point, files=120):
    """Small ones and a few large ones: name -> content."""
    made = {}
    for k in range(files):
        size = test.rng.choice([0, 1, 5000, 70_000, 200_000]) if k % 20 else test.rng.randrange(1_500_000, 5_000_000)
        made[f"f{k}"] = test.rng.randbytes(size)
        put(os.path.join(point, f"f{k}"), made[f"f{k}"])
    return made


def read_all(test, point, made, what):
    for name in sorted(made, key=lambda _: test.rng.random()):
        if take(os.path.join(point, name)) != made[name]:
            test.true(False, f"{what}: {name} is not what was written")
    test.true(True, what)


def end(test, company):
    test.equal(company.problems(), [], "what is wrong at the end")


@case(seconds=120, only="epochfs")
def what_was_read_once_is_read_from_the_disk_from_then_on(test):
    for ro in (False, True):
        company = Cached(test, folder=os.path.join(test.site.base, f"cache-{ro}")) if not ro else company
        if not ro:
            made = data_set(test, company.points[0])
        for turn in range(3):
            company.again()
            read_all(test, company.points[0], made, f"turn {turn}")
        company.mounts[0].umount()
        reads, hits = company.asked()
        test.true(hits == reads > 0, f"of {reads} reads {hits} were hits in the last turn")
        company.mounts[0].options = [*company.mounts[0].options, "--ro"]
        company.mounts[0].start()
    end(test, company)


@case(seconds=120, only="epochfs")
def a_cache_that_is_damaged_at_random_does_not_show(test):
    company = Cached(test)
    point, made = company.points[0], data_set(test, company.points[0])
    for turn in range(8):
        company.again()
        read_all(test, point, made, f"turn {turn}")
        if turn % 2:
            company.mounts[0].umount()
        for path in all_files(company.folder):
            if test.rng.random() < 0.5:
                try:
                    damage(test.rng, path)
                except (FileNotFoundError, FileExistsError):
                    if turn % 2:
                        raise  # else the mount has dropped it, or fetched it again, meanwhile
        if turn % 2:
            company.mounts[0].start()
        drop_pages()
        read_all(test, point, made, f"turn {turn}, after the damage")
    end(test, company)


def all_files(folder):
    """But for the one that says that it is a cache: without that nobody touches the rest."""
    paths = [os.path.join(above, name) for above, _, names in os.walk(folder) for name in names if name != "epochfs-cache"]
    return [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]


def damage(rng, path):
    """Whatever a disk, or somebody who should not, could do to a file."""
    size = os.path.getsize(path)
    kind = rng.choice(["flip", "flip", "flip", "cut", "grow", "zero", "remove", "replace"])
    if kind == "remove":
        os.unlink(path)
    elif kind == "replace":
        os.unlink(path)
        rng.choice([os.mkdir, lambda p: os.symlink("/etc/hostname", p), lambda p: os.mkfifo(p)])(path)
    elif kind == "cut":
        os.truncate(path, rng.randrange(size + 1))
    elif kind == "grow":
        os.truncate(path, size + rng.randrange(1, 200_000))
    elif size:
        with open(path, "r+b") as f:
            for _ in range(rng.choice([1, 10])):
                at = rng.randrange(size)
                f.seek(at)
                old = f.read(min(4096, size - at))
                f.seek(at)
                f.write(bytes(len(old)) if kind == "zero" else bytes([old[0] ^ (1 << rng.randrange(8))]))


@case(seconds=120, only="epochfs")
def a_cache_that_disappears_fills_up_or_turns_read_only_does_not_show(test):
    folder = os.path.join(test.site.base, "small")
    os.mkdir(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder], check=True)
    try:
        company = Cached(test, folder=os.path.join(folder, "cache"), size="20MiB")
        point, made = company.points[0], data_set(test, company.points[0], files=200)
        for turn in range(2):
            company.again()
            read_all(test, point, made, f"turn {turn}: more than fits")
        with open(os.path.join(folder, "filler"), "wb") as f:
            try:
                f.write(bytes(24 << 20))
            except OSError:
                pass
        drop_pages()
        read_all(test, point, made, "full")
        company.mounts[0].umount()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        company.mounts[0].start()
        read_all(test, point, made, "read-only")
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        company.again()
        shutil.rmtree(os.path.join(folder, "cache"))
        drop_pages()
        read_all(test, point, made, "gone")
        company.again()
        read_all(test, point, made, "mounted anew")
        end(test, company)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@case(seconds=120, only="epochfs")
def two_mounts_share_a_cache_and_change_files(test):
    company = Cached(test, mounts=2)
    made = data_set(test, company.points[0], files=60)
    for turn in range(300):
        a, b = test.rng.sample(company.points, 2)
        name = test.rng.choice(sorted(made))
        data = bytearray(made[name])
        at, new = test.rng.randrange(len(data) + 1), test.rng.randbytes(test.rng.choice([1, 100, 5000, 100_000]))
        data[at:at + len(new)] = new
        made[name] = bytes(data)
        fd = os.open(os.path.join(a, name), os.O_WRONLY)
        os.pwrite(fd, new, at)
        os.close(fd)
        if take(os.path.join(b, name)) != made[name]:
            test.true(False, f"turn {turn}: {name}, written on {company.where(a + '/')}")
        if turn % 50 == 49:
            drop_pages()
    for point in company.points:
        read_all(test, point, made, "at the end")
    company.again()
    for point in company.points:
        read_all(test, point, made, "mounted anew")
    end(test, company)


@case(seconds=120, only="epochfs")
def killed_mounts_leave_a_cache_that_can_be_used(test):
    company = Cached(test)
    point, made = company.points[0], data_set(test, company.points[0])
    for turn in range(6):
        company.again()
        rng = random.Random(f"{test.seed} {turn}")
        for name in rng.sample(sorted(made), len(made) // 2):
            take(os.path.join(point, name))
        company.mounts[0].kill()
        company.mounts[0].discard()
        company.mounts[0].start()
        read_all(test, point, made, f"turn {turn}")
    end(test, company)
