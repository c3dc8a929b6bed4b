"""readdir, also of folders that change meanwhile."""
import os
import stat

import syscalls as sys_
from suite import case


@case
def every_name_is_listed_once_with_its_kind(t):
    t.file("file")
    t.folder("folder")
    os.symlink("x", t.path("link"))
    os.mkfifo(t.path("fifo"))
    with os.scandir(t.dir) as entries:
        found = {e.name: ("link" if e.is_symlink() else "dir" if e.is_dir() else "file" if e.is_file() else "other", e.inode()) for e in entries}
    t.equal({n: k for n, (k, _) in found.items()}, {"file": "file", "folder": "dir", "link": "link", "fifo": "other"})
    for name, (_, inode) in found.items():
        t.equal(inode, os.lstat(t.path(name)).st_ino, f"inode of {name}")


@case
def dot_and_dotdot_come_too(t):
    t.folder("d")
    entries = {}
    with sys_.Directory(t.path("d")) as d:
        for entry in d:
            entries[entry[0]] = entry[1]
    t.equal(sorted(entries), [".", ".."])
    t.equal(entries["."], os.stat(t.path("d")).st_ino)


@case(lasting=False, seconds=240)
def ten_thousand_names_and_deleting_while_listing(t):
    names = {f"name-{k:05d}-{'x' * (k % 50)}" for k in range(10000)}
    for name in names:
        os.close(os.open(t.path(name), os.O_CREAT | os.O_WRONLY, 0o600))
    listed = os.listdir(t.dir)
    t.equal(len(listed), 10000, "count")
    t.equal(set(listed), names, "names")
    with os.scandir(t.dir) as entries:
        for entry in entries:
            os.unlink(entry.path)
    t.equal(os.listdir(t.dir), [], "rm -r leaves nothing behind")


@case(lasting=False)
def stable_names_are_seen_once_whatever_else_changes(t):
    stable = {f"stable-{k}" for k in range(1000)}
    for name in stable:
        t.file(name)
    for k in range(1000):
        t.file(f"old-{k}")
    seen, step = [], 0
    with os.scandir(t.dir) as entries:
        for entry in entries:
            seen.append(entry.name)
            if step < 1000:
                os.unlink(t.path(f"old-{step}"))
                t.file(f"new-{step}")
                if step % 10 == 0:
                    os.rename(t.path(f"new-{step}"), t.path(f"renamed-{step}"))
            step += 1
    kept = [n for n in seen if n in stable]
    t.equal(len(kept), len(set(kept)), "no stable name twice")
    t.equal(set(kept), stable, "no stable name missing")


@case(lasting=False)
def telldir_and_seekdir_go_back_to_the_same_place(t):
    for k in range(500):
        t.file(f"f{k}")
    with sys_.Directory(t.dir) as d:
        order, marks = [], []
        for _ in range(502):
            marks.append(d.tell())
            order.append(d.read()[0])
        for at in (400, 17, 0, 250, 501):
            d.seek(marks[at])
            t.equal(d.read()[0], order[at], f"after seeking to {at}")
        for name in order[:100]:
            if name not in (".", ".."):
                os.unlink(t.path(name))
        d.seek(marks[300])
        t.equal(d.read()[0], order[300], "after others were deleted")


@case(lasting=False)
def rewinding_shows_what_is_new(t):
    t.file("a")
    with sys_.Directory(t.dir) as d:
        while d.read():
            pass
        t.file("b")
        os.unlink(t.path("a"))
        d.rewind()
        names = set()
        while (entry := d.read()):
            names.add(entry[0])
        t.equal(names, {".", "..", "b"})


@case
def listings_follow_changes_at_once(t):
    for k in range(30):
        t.file(f"f{k}")
        t.equal(len(os.listdir(t.dir)), k + 1)
    for k in range(30):
        os.unlink(t.path(f"f{k}"))
        t.equal(len(os.listdir(t.dir)), 29 - k)


@case(long=True, seconds=1800, lasting=False)
def a_million_names_in_one_folder(t):
    for k in range(1000000):
        os.close(os.open(t.path(f"{k:07d}"), os.O_CREAT | os.O_WRONLY, 0o600))
    count = 0
    with os.scandir(t.dir) as entries:
        for _ in entries:
            count += 1
    t.equal(count, 1000000)
    t.true(stat.S_ISREG(os.stat(t.path("0999999")).st_mode), "the last one is there")
