"""Damage: objects that lost or changed bytes, metadata that cannot be read, a second server, a server that is away."""
import errno
import hashlib
import os
import re
import shutil
import subprocess
import time

import units
from epochfs import drop_caches
from mounting import writes_back
from state import read_file
from suite import case
from waiting import wait_until

OBJECT = re.compile("[0-9a-f]{16}")
PAGE = 4096


def objects_of(server):
    """Paths of all stored objects."""
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(server.data, "objects")) for name in names
                  if OBJECT.fullmatch(name))


def write_file(path, file, size):
    with open(path, "wb", buffering=0) as f:
        data = memoryview(units.stream(file, 0, size))
        while data:
            data = data[f.write(data):]
        os.fsync(f.fileno())


def is_whole(path, file, size):
    data = read_file(path)
    return len(data) == size and units.difference(data, file) is None


def flip_byte(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ 0x40]))


# -- objects

LARGE, SMALL, SMALL_COUNT = 600_000, 3000, 20


def filled(test):
    """A server with two large files and a pack of small ones; {name: (file, size)}."""
    server = test.site.server()
    server.volume("v", "--block-size", "256KiB")
    mount = server.mount("v")
    files = {"large-1": (1, LARGE), "large-2": (2, LARGE)}
    for name, (file, size) in files.items():
        write_file(os.path.join(mount.point, name), file, size)
    os.mkdir(os.path.join(mount.point, "small"))
    for k in range(SMALL_COUNT):
        name = f"small/{k}"
        files[name] = (100 + k, SMALL)
        with open(os.path.join(mount.point, name), "wb", buffering=0) as f:
            f.write(units.stream(100 + k, 0, SMALL))
    return server, mount, files


def read_all(mount, files):
    """(names that are whole, names that give EIO, names with anything else)."""
    whole, refused, wrong = [], [], []
    for name, (file, size) in files.items():
        try:
            (whole if is_whole(os.path.join(mount.point, name), file, size) else wrong).append(name)
        except OSError as error:
            (refused if error.errno == errno.EIO else wrong).append(name)
    return whole, refused, wrong


def check_damage(test, server, mount, files, path, lost_at_most):
    """One object is bad: its files give EIO and are named, the others are fine, scrub and fsck find it."""
    number = int(os.path.basename(path), 16)
    told = len(server.log_text())
    mount.start()
    drop_caches()
    whole, refused, wrong = read_all(mount, files)
    test.equal(wrong, [], "files with wrong bytes or other errors")
    test.true(1 <= len(refused) <= lost_at_most, f"1 to {lost_at_most} files give EIO ({refused})")
    test.equal(len(whole) + len(refused), len(files), "files in the sum")
    log = mount.log_text(since_start=True) + server.log_text()[told:]
    lines = [line for line in log.splitlines() if re.search(rf"\b(0*{number:x}|{number})\b", line) and "object" in line]
    for name in refused:
        test.true(any(name in line for line in lines), f"a line of the log names {name} and object {number}: {log}")
    for kind in ("scrub", "fsck"):
        code, out, err = server.cli(kind, "--json", check=False)
        test.equal(code, 1, f"exit code of {kind}")
        test.true(all(name in out for name in refused), f"{kind} names {refused}: {out} {err}")
    mount.umount()
    return refused


@case
def a_flipped_byte_is_an_io_error_of_one_file_and_named(test):
    server, mount, files = filled(test)
    mount.umount()
    objects = objects_of(server)
    test.true(len(objects) < 20, f"small files share packs ({len(objects)} objects)")
    largest = max(objects, key=os.path.getsize)
    flip_byte(largest, 1000)
    refused = check_damage(test, server, mount, files, largest, 1)
    test.true(refused and refused[0].startswith("large"), "the file of that object")
    flip_byte(largest, 1000)
    mount.start()
    test.equal(read_all(mount, files)[1:], ([], []), "files that are not whole after the byte was put right")
    clean, text = server.fsck()
    test.true(clean, f"fsck is clean again: {text}")


@case
def a_flipped_byte_in_a_pack_costs_one_small_file(test):
    server, mount, files = filled(test)
    mount.umount()
    wanted = units.unit(100, 0, 0)
    packs = [p for p in objects_of(server) if wanted in read_file(p)]
    test.equal(len(packs), 1, "objects that hold the first small file")
    data = read_file(packs[0])
    held = [name for name, (file, _) in files.items() if units.unit(file, 0, 0) in data]
    test.true(len(held) > SMALL_COUNT // 2, f"it is a pack of small files ({held})")
    flip_byte(packs[0], data.index(wanted) + 700)
    test.equal(check_damage(test, server, mount, files, packs[0], 1), ["small/0"], "files that are lost")


@case
def an_object_that_was_cut_or_is_gone_is_an_io_error(test):
    server, mount, files = filled(test)
    mount.umount()
    largest = max(objects_of(server), key=os.path.getsize)
    shutil.copy2(largest, test.site.path("good"))
    os.truncate(largest, 5000)
    check_damage(test, server, mount, files, largest, 1)
    os.unlink(largest)
    check_damage(test, server, mount, files, largest, 1)
    server.stop()       # as docs/operations.md says: it may have the bad one open
    shutil.copy2(test.site.path("good"), largest)
    server.start()
    mount.start()
    test.equal(read_all(mount, files)[1:], ([], []), "files that are not whole after the object was put back")


# -- metadata

def data_file(server):
    return os.path.join(server.data, "meta", "data.mdb")


def newest_backup(server):
    folder = os.path.join(server.data, "backup")
    names = sorted(n for n in os.listdir(folder) if n.endswith(".mdb"))
    return os.path.join(folder, names[-1])


def truncated(size):
    return lambda path: os.truncate(path, size(os.path.getsize(path)))


def overwritten(where, data):
    def damage(path):
        first, last = where(os.path.getsize(path))
        with open(path, "r+b") as f:
            f.seek(first)
            f.write(data(last - first))
    return damage


DAMAGES = {
    "cut in half": truncated(lambda size: size // 2 // PAGE * PAGE),
    "cut within a page": truncated(lambda size: 3 * PAGE + 100),
    "cut to one page": truncated(lambda size: PAGE),
    "empty": truncated(lambda size: 0),
    "garbage header": overwritten(lambda size: (0, 2 * PAGE), os.urandom),
    "zeroed header": overwritten(lambda size: (0, 2 * PAGE), bytes),
    "zeroed pages": overwritten(lambda size: (2 * PAGE, size), bytes),
    "garbage pages": overwritten(lambda size: (2 * PAGE, size), os.urandom),
    "garbage altogether": overwritten(lambda size: (0, size), os.urandom),
}


def refuses(test, server, what):
    """Starts it; it must end by itself with a message that helps, and leave the file as it is."""
    with open(data_file(server), "rb") as f:
        before = hashlib.sha256(f.read()).digest()
    server.start(ready=False)
    server.wanted = False
    code = server.wait_exit(60, f"refuse to start ({what})")
    text = server.log_text(since_start=True)
    test.equal(code, 1, f"{what}: exit code")
    for word in (data_file(server), "damaged", "backup", "docs/operations.md"):
        test.true(word in text, f"{what}: the message tells {word!r}: {text}")
    with open(data_file(server), "rb") as f:
        test.true(hashlib.sha256(f.read()).digest() == before, f"{what}: the file was left as it was")


def restore(server, backup):
    """As docs/operations.md says under "Damaged metadata"."""
    aside = os.path.join(server.data, "meta.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(os.path.join(server.data, "meta"), aside)
    os.mkdir(os.path.join(server.data, "meta"), 0o700)
    shutil.copyfile(backup, data_file(server))


@case(seconds=180)
def damaged_metadata_are_refused_and_the_backup_brings_all_back(test):
    server, mount, files = filled(test)
    mount.umount()
    test.equal(server.stop(), 0, "exit code of a polite end")
    with open(data_file(server), "rb") as f:
        good = f.read()
    for what, damage in DAMAGES.items():
        with open(data_file(server), "wb") as f:
            f.write(good)
        damage(data_file(server))
        refuses(test, server, what)
    restore(server, newest_backup(server))
    server.start()
    clean, text = server.fsck()
    test.true(clean, f"fsck after the restore is clean: {text}")
    mount.start()
    test.equal(read_all(mount, files)[1:], ([], []), "files that are not whole after the restore")
    write_file(os.path.join(mount.point, "new"), 7, LARGE)
    mount.remount()
    test.true(is_whole(os.path.join(mount.point, "new"), 7, LARGE), "a new file after the restore is whole")


@case(seconds=300)
def a_single_lost_page_never_crashes_the_server(test):
    """It refuses, or the page was not in use: then everything is there and fsck is clean."""
    server, mount, files = filled(test)
    mount.umount()
    server.stop()
    with open(data_file(server), "rb") as f:
        good = f.read()
    refused = 0
    for page in range(2, len(good) // PAGE):
        for filling in (bytes(PAGE), os.urandom(PAGE)):
            with open(data_file(server), "wb") as f:
                f.write(good[:page * PAGE] + filling + good[(page + 1) * PAGE:])
            server.start(ready=False)
            wait_until(lambda: not server.alive() or _listening(server), 60, f"an end or a start with page {page} lost")
            if server.alive():
                clean, text = server.fsck()
                test.true(clean, f"page {page} was not in use: {text}")
                server.kill()
            else:
                server.note_crash()
                refused += 1
                test.true("damaged" in server.log_text(since_start=True), f"page {page}: it says why: {server.log_text(since_start=True)}")
    server.wanted = False
    test.true(refused > 10, f"most pages are in use ({refused} refused of {2 * (len(good) // PAGE - 2)})")


def _listening(server):
    try:
        return server.answers()
    except Exception:
        return True         # it ended meanwhile, which the caller looks at


@case(seconds=180)
def an_old_backup_gives_the_old_files_and_new_ones_stay_whole(test):
    """What came after the copy is lost, but object ids must not be handed out twice for what is already stored."""
    server, mount, files = filled(test)
    mount.umount()
    server.stop()
    backup = test.site.path("copy.mdb")
    shutil.copyfile(newest_backup(server), backup)
    server.start()
    mount.start()
    for k in range(12):
        write_file(os.path.join(mount.point, f"later-{k}"), 200 + k, LARGE)
    os.unlink(os.path.join(mount.point, "large-1"))
    mount.kill()
    server.kill()
    truncated(lambda size: PAGE)(data_file(server))
    refuses(test, server, "cut to one page")
    restore(server, backup)
    server.start()
    mount.start()
    whole, _, _ = read_all(mount, files)
    test.equal(len(whole), len(files), "the files of the copy are whole, the deleted one too")
    test.equal([n for n in os.listdir(mount.point) if n.startswith("later")], [], "files made after the copy")
    for k in range(12):
        write_file(os.path.join(mount.point, f"new-{k}"), 300 + k, LARGE)
    mount.remount()
    for k in range(12):
        test.true(is_whole(os.path.join(mount.point, f"new-{k}"), 300 + k, LARGE), f"new-{k} after the restore is whole")
    clean, text = server.fsck()
    test.true(clean, f"fsck is clean: {text}")
    server.cli("gc")
    drop_caches()
    test.equal(read_all(mount, files)[1:], ([], []), "files that are not whole after gc")
    clean, text = server.fsck()
    test.true(clean, f"fsck is clean after gc: {text}")


# -- a second server, a server that is away

@case
def a_second_server_on_the_same_data_is_refused(test):
    server, mount, files = filled(test)
    code, out, err = test.site.run([test.site.binary, "serve", "--data", server.data], 60, check=False)
    test.equal(code, 1, "exit code of the second")
    test.true(server.data in err and re.search("another server|in use", err), f"it says why: {err}")
    test.true(str(server.process.pid) in err, f"and which process has it: {err}")
    test.equal(read_all(mount, files)[1:], ([], []), "files that are not whole")
    write_file(os.path.join(mount.point, "after"), 8, SMALL)
    server.kill()
    server.start()
    test.true(is_whole(os.path.join(mount.point, "after"), 8, SMALL), "the first server goes on, and the lock goes with a kill")


TIMEOUT = 3


@case(seconds=240)
def a_server_away_for_too_long_is_an_io_error_and_then_all_goes_on(test):
    server = test.site.server()
    server.volume("v", "--block-size", "64KiB")
    mount = server.mount("v", options=["--timeout", f"{TIMEOUT}s"])
    path = os.path.join(mount.point, "half")
    write_file(os.path.join(mount.point, "there"), 2, LARGE)
    fd = test.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, units.stream(1, 0, 100_000))
    os.fsync(fd)
    os.write(fd, units.stream(1, 100_000, 100_000))
    server.kill()
    drop_caches()
    began = time.monotonic()
    test.fails(errno.EIO, os.mkdir, os.path.join(mount.point, "no"), what="mkdir while the server is away")
    took = time.monotonic() - began
    test.true(TIMEOUT - 0.5 <= took <= TIMEOUT + 5, f"it waited for --timeout ({took:.1f} s)")
    if writes_back():       # the server has the file's mark since the first fsync, and the local disk has the data
        test.works(os.fsync, fd, what="fsync while the server is away, with write-back")
    else:
        test.fails(errno.EIO, os.fsync, fd, what="fsync while the server is away")
    test.fails(errno.EIO, read_file, os.path.join(mount.point, "there"), what="a cold read while the server is away")
    test.true(mount.alive(), "the mount lives on")
    server.start()

    def works():
        try:
            os.stat(os.path.join(mount.point, "there"))
            return True
        except OSError:
            return False

    wait_until(works, 30, "the mount to go on by itself")
    os.write(fd, units.stream(1, 200_000, 100_000))
    wait_until(lambda: _synced(fd), 30, "fsync to work again")
    os.mkdir(os.path.join(mount.point, "yes"))
    test.true(is_whole(os.path.join(mount.point, "there"), 2, LARGE), "what was there is whole")
    test.true(is_whole(path, 1, 300_000), "the file that was half written is whole")
    test.close(fd)
    mount.remount()
    test.true(is_whole(path, 1, 300_000), "the file that was half written is whole after a new mount")
    test.equal(sorted(os.listdir(mount.point)), ["half", "there", "yes"], "names")
    clean, text = server.fsck()
    test.true(clean, f"fsck is clean: {text}")


def _synced(fd):
    try:
        os.fsync(fd)
        return True
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False


@case
def a_dead_mount_can_be_unmounted_and_mounted_again(test):
    server, mount, files = filled(test)
    mount.kill()
    mount.wait_dead()
    test.fails(errno.ENOTCONN, os.listdir, mount.point)
    subprocess.run([test.site.binary, "umount", mount.point], timeout=60, check=True, stdin=subprocess.DEVNULL)
    test.equal(os.listdir(mount.point), [], "nothing is mounted")
    mount.start()
    whole = read_all(mount, {n: f for n, f in files.items() if n.startswith("large")})[0]
    test.equal(sorted(whole), ["large-1", "large-2"], "synced files that are whole")
