"""Names, attributes and open files over several mounts: what one has done, the others see."""
import errno as E
import os
import shutil
import stat
import struct
import time

from company import Hands, both, put, sides, take, take_open
from suite import case

AGE_SECONDS = 0.5       # written data is stored by itself after a second: what took longer than this proves nothing


@case
def a_rename_is_seen_at_once(test):
    for turn in range(20):
        here, there = sides(test, "d")[turn % 2]
        if turn == 0:
            os.mkdir(here)
        put(f"{here}/old", b"%d" % turn)
        test.equal(take(f"{there}/old"), b"%d" % turn, f"turn {turn}: the old name before")
        os.rename(f"{here}/old", f"{here}/new")
        test.fails(E.ENOENT, os.stat, f"{there}/old", what=f"turn {turn}: stat of the old name on {test.company.where(there)}")
        test.equal(take(f"{there}/new"), b"%d" % turn, f"turn {turn}: the new name")
        test.equal(os.listdir(there), ["new"], f"turn {turn}: the listing")


@case
def an_unlink_is_seen_at_once(test):
    for turn in range(20):
        here, there = sides(test, "f")[turn % 2]
        put(here, b"x")
        test.equal(os.stat(there).st_size, 1, f"turn {turn}: before")
        os.unlink(here)
        test.fails(E.ENOENT, os.stat, there, what=f"turn {turn}: stat on {test.company.where(there)} after unlink")
        test.fails(E.ENOENT, os.open, there, os.O_RDONLY, what=f"turn {turn}: open")


@case
def a_name_that_was_missing_is_seen_once_made(test):
    """Negative look-ups are cached, by the catalog if not by the kernel; that must not outlive the create."""
    for turn in range(30):
        here, there = sides(test, f"f{turn}")[turn % 2]
        test.fails(E.ENOENT, os.stat, there, what=f"turn {turn}: before")
        kind = turn % 4
        if kind == 0:
            os.close(os.open(here, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        elif kind == 1:
            os.mkdir(here)
        elif kind == 2:
            os.symlink("nowhere", here)
        else:
            os.mknod(here, stat.S_IFIFO | 0o644)
        test.works(os.lstat, there, what=f"turn {turn}: lstat on {test.company.where(there)} after it was made")
        test.fails(E.EEXIST, os.mkdir, there, what=f"turn {turn}: mkdir of the same name")


@case
def missing_names_after_listing_are_seen_once_made(test):
    """A mount that knows the whole directory answers for what is not in it."""
    here, there = both(test, "d")
    os.mkdir(here)
    for k in range(20):
        put(f"{here}/n{k}", b"")
    for turn in range(10):
        test.equal(len(os.listdir(there)), 20 + turn, f"turn {turn}: names on b")
        for k in range(12):
            test.fails(E.ENOENT, os.stat, f"{there}/missing{k + turn}")
        put(f"{here}/missing{turn}", b"x")
        test.works(os.stat, f"{there}/missing{turn}", what=f"turn {turn}: after create on a")


@case
def attributes_are_seen_at_once(test):
    here, there = both(test, "f")
    for turn in range(10):
        put(here, b"%d" % turn)
        os.stat(there)
        os.chmod(here, 0o600 + turn)
        test.mode(there, 0o600 + turn, f"turn {turn}: mode on b")
        os.chown(here, turn, turn + 1)
        test.owner(there, turn, turn + 1)
        os.utime(here, ns=(turn * 10 ** 9 + 1, turn * 10 ** 9 + 2))
        st = os.stat(there)
        test.equal((st.st_atime_ns, st.st_mtime_ns), (turn * 10 ** 9 + 1, turn * 10 ** 9 + 2), f"turn {turn}: times on b")
        test.equal(st.st_ctime_ns, os.stat(here).st_ctime_ns, f"turn {turn}: ctime on both")
        os.setxattr(here, "user.turn", b"%d" % turn)
        test.equal(os.getxattr(there, "user.turn"), b"%d" % turn, f"turn {turn}: xattr on b")
        os.removexattr(here, "user.turn")
        test.fails(E.ENODATA, os.getxattr, there, "user.turn", what=f"turn {turn}: removed xattr on b")
        here, there = there, here


def acl(*entries):
    """system.posix_acl_*: (tag, permissions, id) each."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, perm, who) for tag, perm, who in entries)


@case
def acls_are_seen_and_obeyed_at_once(test):
    from users import ANNA
    nobody = 0xFFFFFFFF
    for here, there in sides(test, "f"):
        put(here, b"secret", mode=0o600)
        os.chmod(here, 0o600)
        test.fails(E.EACCES, take, there, user=ANNA, what="before the ACL")
        value = acl((1, 6, nobody), (2, 4, ANNA.uid), (4, 0, nobody), (16, 4, nobody), (32, 0, nobody))
        os.setxattr(here, "system.posix_acl_access", value)
        test.equal(os.getxattr(there, "system.posix_acl_access"), value, "the ACL on the other mount")
        test.mode(there, 0o640, "the mask is the group's mode on the other mount")
        test.equal(test.as_user(ANNA, take, there), b"secret", "anna may read on the other mount")
        os.removexattr(here, "system.posix_acl_access")
        os.chmod(here, 0o600)
        test.fails(E.EACCES, take, there, user=ANNA, what="after the ACL went")


@case
def link_counts_are_seen_at_once(test):
    a, b = both(test, "d")
    os.mkdir(a)
    put(f"{a}/f", b"x")
    for turn in range(10):
        here, there = (a, b)[turn % 2], (b, a)[turn % 2]
        os.link(f"{here}/f", f"{here}/l{turn}")
        test.equal(os.stat(f"{there}/f").st_nlink, turn + 2, f"turn {turn}: links after link")
        os.mkdir(f"{here}/s{turn}")
        test.equal(os.stat(there).st_nlink, turn + 3, f"turn {turn}: links of the directory")
    for turn in range(10):
        here, there = (b, a)[turn % 2], (a, b)[turn % 2]
        os.unlink(f"{here}/l{turn}")
        test.equal(os.stat(f"{there}/f").st_nlink, 10 - turn, f"turn {turn}: links after unlink")
        os.rmdir(f"{here}/s{turn}")
        test.equal(os.stat(there).st_nlink, 11 - turn, f"turn {turn}: links of the directory after rmdir")


@case
def a_directory_renamed_elsewhere_takes_its_names_along(test):
    a, b = both(test, "d")
    os.makedirs(f"{a}/one/deep")
    put(f"{a}/one/deep/f", b"x")
    test.equal(take(f"{b}/one/deep/f"), b"x")
    fd = test.open(f"{b}/one/deep", os.O_RDONLY | os.O_DIRECTORY)
    os.rename(f"{a}/one", f"{a}/two")
    test.fails(E.ENOENT, os.stat, f"{b}/one/deep/f")
    test.equal(take(f"{b}/two/deep/f"), b"x")
    test.equal(os.stat("f", dir_fd=fd).st_size, 1, "by a descriptor from before")
    os.unlink(f"{a}/two/deep/f")
    os.rmdir(f"{a}/two/deep")
    test.fails(E.ENOENT, os.stat, "f", dir_fd=fd, what="in the removed directory")
    test.fails(E.ENOENT, os.open, "g", os.O_WRONLY | os.O_CREAT, dir_fd=fd, what="create in the removed directory")


@case
def a_listing_shows_what_the_other_makes(test):
    a, b = both(test, "d")
    os.mkdir(a)
    for k in range(100):
        put(f"{a}/f{k}", b"")
        if k % 5 == 0:
            test.equal(len(os.listdir(b)), k + 1, f"names on b after {k + 1} were made on a")
    with os.scandir(b) as entries:
        first = next(entries).name
        put(f"{a}/more", b"")
        names = [first] + [entry.name for entry in entries]
    test.equal(len(set(names)), len(names), "no name twice in a listing that went on during a create")
    test.true(set(names) >= {f"f{k}" for k in range(100)}, "every name that was there all the time is listed")
    test.true("more" in os.listdir(b), "a new listing has the new name")


def create_once(path, start):
    """In a hand: at the moment told; 1 if it was this one that made it."""
    while time.monotonic() < start:
        pass
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        return 1
    except FileExistsError:
        return 0


def make_once(path, start, how):
    while time.monotonic() < start:
        pass
    try:
        how(path)
        return 1
    except FileExistsError:
        return 0


@case(seconds=90)
def of_many_creators_exactly_one_wins(test):
    rounds = 200 if test.long else 40
    with Hands(test.site, *[f"creator-{k}" for k in range(8)]) as hands:
        for turn in range(rounds):
            start = time.monotonic() + 0.003
            for k, hand in enumerate(hands):
                hand.start(create_once, os.path.join(test.folders[k % 4], f"f{turn}"), start)
            won = [hand.finish() for hand in hands]
            test.equal(sum(won), 1, f"round {turn}: O_EXCL creators that won ({won}; creator k is on mount k % 4)")
            for k, hand in enumerate(hands):
                hand.start(make_once, os.path.join(test.folders[k % 4], f"d{turn}"), start, os.mkdir)
            won = [hand.finish() for hand in hands]
            test.equal(sum(won), 1, f"round {turn}: makers of a directory that won ({won})")


@case
def unlinked_on_one_mount_and_open_on_another_keeps_its_data(test):
    for here, there in sides(test, "f"):
        data = test.rng.randbytes(200_000)
        put(here, data)
        fd = test.open(there, os.O_RDWR)
        os.unlink(here)
        test.equal(os.fstat(fd).st_nlink, 0, "links")
        test.equal(take_open(fd), data, "read after unlink on the other mount")
        os.pwrite(fd, b"more", len(data))
        os.fsync(fd)
        put(here, b"another file of that name")
        test.equal(take_open(fd), data + b"more", "written and read after unlink")
        test.close(fd)
        test.equal(take(there), b"another file of that name", "the new file of that name")
        os.unlink(here)


@case
def renamed_over_on_one_mount_and_open_on_another_keeps_its_data(test):
    for here, there in sides(test, "f"):
        put(here, b"old content")
        fd = test.open(there, os.O_RDWR)
        test.equal(os.read(fd, 100), b"old content")
        put(here + ".tmp", b"new content")
        os.rename(here + ".tmp", here)
        test.equal(take(there), b"new content", "by its name")
        test.equal(os.pread(fd, 100, 0), b"old content", "by the open file")
        os.pwrite(fd, b"OLD", 0)
        test.equal(take(here), b"new content", "writing into the old one does not touch the new one")
        test.equal(os.pread(fd, 100, 0), b"OLD content", "the old one took it")
        test.close(fd)


@case
def a_writer_renamed_meanwhile_goes_on_writing(test):
    a, b = both(test, "f")
    fd = test.open(a, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"one ")
    os.rename(b, b + ".moved")
    os.write(fd, b"two ")
    test.equal(take(b + ".moved"), b"one two ", "under the new name on b")
    test.fails(E.ENOENT, os.stat, a)
    os.unlink(b + ".moved")
    os.write(fd, b"three")
    test.equal(take_open(fd), b"one two three", "nameless on a")


# -- a stat asks the writer, and does not make it store

@case(only="epochfs")
def stat_of_what_another_writes_gives_its_size_and_does_not_store_it(test):
    """Counted by the server: `epochfs status` tells the number of objects and of committed batches."""
    a, b = both(test, "f")
    fd = test.open(a, os.O_RDWR | os.O_CREAT)
    size, proven, stored = 0, 0, []
    for turn in range(12):
        os.fsync(fd)
        before = test.company.server.json("status")
        began = time.monotonic()
        size += os.write(fd, b"x" * 1000)
        st = os.stat(b)
        names = {entry.name: entry.stat().st_size for entry in os.scandir(test.b)}
        quick = time.monotonic() - began < AGE_SECONDS
        after = test.company.server.json("status")
        test.equal(st.st_size, size, f"turn {turn}: size on b of what a has written")
        test.equal(names.get("f"), size, f"turn {turn}: size on b by a listing (ls -l)")
        test.equal(st.st_mtime_ns, os.fstat(fd).st_mtime_ns, f"turn {turn}: mtime on both")
        if quick and time.monotonic() - began < AGE_SECONDS * 1.6:
            proven += 1
            if (after["objects"], after["batch"]) != (before["objects"], before["batch"]):
                stored.append(turn)
    test.true(proven >= 3, f"at least three turns quick enough to prove something ({proven})")
    # Others' sessions and the reaper commit now and then: one turn may see that.
    test.true(len(stored) <= 1, f"stat and ls -l on b left the writer alone; something was committed in turns {stored} of {proven}")
    before = test.company.server.json("status")
    os.write(fd, b"y" * 1000)
    test.equal(len(take(b)), size + 1000, "reading on b")
    after = test.company.server.json("status")
    test.true(after["objects"] > before["objects"], "reading does make the writer store: what was counted counts")


@case
def times_of_what_another_writes_do_not_move_when_it_is_stored(test):
    a, b = both(test, "f")
    fd = test.open(a, os.O_RDWR | os.O_CREAT)
    for turn in range(5):
        os.write(fd, b"x" * 100)
        first = os.stat(b)
        os.fsync(fd)
        second = os.stat(b)
        test.equal((second.st_mtime_ns, second.st_ctime_ns), (first.st_mtime_ns, first.st_ctime_ns), f"turn {turn}: mtime and ctime on b")
        last = os.fstat(fd)
        test.equal((last.st_mtime_ns, last.st_ctime_ns), (first.st_mtime_ns, first.st_ctime_ns), f"turn {turn}: the same on a")


CHANGES = {
    "chmod": lambda path: os.chmod(path, 0o640),
    "chown": lambda path: os.chown(path, 1, 2),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"1"),
    "removexattr": lambda path: os.removexattr(path, "user.x"),
    "link": lambda path: os.link(path, path + ".link"),
    "rename": lambda path: os.rename(path, path + ".new"),
    "unlink": lambda path: os.unlink(path + ".link"),
}


@case
def changes_of_attributes_and_names_leave_size_and_mtime_of_what_is_written_alone(test):
    """Of what a has written and not yet stored; the change is made on either mount."""
    for side in range(2):
        a, b = both(test, f"f{side}")
        fd = test.open(a, os.O_RDWR | os.O_CREAT)
        name, size = "", 0
        for what, change in CHANGES.items():
            size += os.write(fd, b"x" * 100)
            before = os.stat(b + name)
            change((a, b)[side] + (name if what != "unlink" else ""))
            name = ".new" if what == "rename" else name
            for k, path in enumerate((b, a)):
                after = os.stat(path + name)
                test.equal((after.st_size, after.st_mtime_ns), (before.st_size, before.st_mtime_ns),
                           f"size and mtime on {'ba'[k]} after {what} on {'ab'[side]}, before which a had written")
            test.equal(before.st_size, size, f"size on b before {what}")


# -- a mount that comes later

@case(seconds=90, only="epochfs")
def files_open_before_the_second_mount_came_are_shared_like_others(test):
    """Alone, a mount makes files by itself and keeps everything; what it holds then must come out when it gets company."""
    server = test.company.server
    volume = server.volume("later")
    first = server.mount(volume, name="first")
    second = None
    try:
        a = first.point
        fd = os.open(f"{a}/f", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        gone = os.open(f"{a}/gone", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"alone ")
        os.write(gone, b"nameless")
        os.unlink(f"{a}/gone")
        for k in range(50):
            put(f"{a}/n{k}", b"%d" % k)
        second = server.mount(volume, name="second")
        b = second.point
        test.equal(len(os.listdir(b)), 51, "names on the second mount")
        test.equal(take(f"{b}/f"), b"alone ", "unstored data of an open file")
        test.equal([take(f"{b}/n{k}") for k in range(50)], [b"%d" % k for k in range(50)], "unstored data of closed files")
        os.write(fd, b"in company ")
        test.equal(take(f"{b}/f"), b"alone in company ", "written after the second came")
        put(f"{b}/f", b"second ", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"first")
        test.equal(take(f"{b}/f"), b"alone in company second first", "appended by turns")
        os.rename(f"{b}/n0", f"{b}/renamed")
        test.fails(E.ENOENT, os.stat, f"{a}/n0")
        test.equal(take_open(gone), b"nameless", "a nameless file from before")
        test.equal(second.umount(), 0, "the second mount's end")
        os.write(fd, b"!")
        test.equal(take_open(fd), b"alone in company second first!", "alone again")
        put(f"{a}/last", b"x")
        os.close(gone)
        os.close(fd)
    finally:
        for mount in (second, first):
            if mount:
                mount.discard()


def learned(*folders):
    """Lists, and looks at everything, so that the mount and its kernel know it."""
    for folder in folders:
        for name in os.listdir(folder):
            os.stat(os.path.join(folder, name))


@case
def what_a_mount_has_moved_itself_it_sees_change(test):
    """A name, and attributes, that were learned under one directory's grant are in another directory now."""
    for turn in range(5):
        for here, there in sides(test, f"turn-{turn}"):
            os.mkdir(here)
            for folder in ("from", "to"):
                os.mkdir(os.path.join(here, folder))
            for k in range(10):
                put(os.path.join(here, "from", str(k)), b"old")
            learned(os.path.join(there, "from"), there)
            os.rename(os.path.join(there, "from/1"), os.path.join(there, "to/b"))
            os.link(os.path.join(there, "from/2"), os.path.join(there, "to/linked"))
            os.chmod(os.path.join(here, "to/b"), 0o600)
            os.chmod(os.path.join(here, "to/linked"), 0o600)
            test.equal(os.stat(os.path.join(there, "to/b")).st_mode & 0o777, 0o600, f"turn {turn}: mode of what was moved")
            test.equal(os.stat(os.path.join(there, "from/2")).st_mode & 0o777, 0o600, f"turn {turn}: mode of what has two names")
            os.rename(os.path.join(here, "to/b"), os.path.join(here, "to/c"))
            put(os.path.join(here, "to/b"), b"new one")
            test.equal(take(os.path.join(there, "to/b")), b"new one", f"turn {turn}: what has the name now")
            shutil.rmtree(here)


@case(only="epochfs")
def what_is_mounted_below_stays_there(test):
    a, b = both(test, "folder")
    os.makedirs(os.path.join(a, "sub"))
    for k in range(10):
        put(os.path.join(a, str(k)), b"x")
    learned(b, test.b)
    point = os.path.join(b, "sub")
    test.site.run(["mount", "-t", "tmpfs", "none", point], 10)
    try:
        put(os.path.join(point, "inside"), b"x")
        for turn in range(5):
            put(os.path.join(a, f"new-{turn}"), b"x")
            learned(b)
            test.equal(os.listdir(point), ["inside"], f"turn {turn}: what is mounted on a directory of b")
    finally:
        test.site.run(["umount", point], 10)
