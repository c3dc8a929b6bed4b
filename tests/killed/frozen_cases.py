"""The server does not answer, so the request is being handled when its program is killed; it is thawed afterwards."""
import fcntl
import os

import syscalls as sys_
from blocks import Blocks
from mounting import has_cache
from program import Program, Requests, frozen
from suite import case
from waiting import TookTooLong, wait_until

COLD = 65536
ATTEMPTS = 5


def cold_content(name):
    """Of a file that the mount has never read."""
    return (name.encode() * (COLD // len(name) + 1))[:COLD]


COLD_NAMES = ("read", "read_pages", "open", "lock_test", "fallocate", "copy", "truncate", "xattr", "flush")


def make_cold(folder):
    os.mkdir(folder)
    for name in COLD_NAMES:
        for attempt in range(ATTEMPTS):
            with open(os.path.join(folder, f"{name}.{attempt}"), "wb") as f:
                f.write(cold_content(name))


def cache_of_its_own(site):
    """For the mount that makes them: what it wrote is in no cache of others."""
    return ["--cache-dir", site.path("writer-cache")] if has_cache() else []


def at_request(t, name, request, prepare, act, end, mount=None):
    """A program that has run prepare(path) on a cold file runs act(that, path) while the server is frozen; when this request has come,
    end(program, requests, inode) kills it.  Returns the path."""
    mount = mount or t.site.main_mount
    for attempt in range(ATTEMPTS):
        path = os.path.join(mount.point, "cold", f"{name}.{attempt}")
        inode = os.stat(path).st_ino
        with Program(lambda: prepare(path), lambda thing: act(thing, path)) as p:
            requests = Requests(mount)
            with frozen(t.site.servers[0]):
                p.go()
                if not requests.came(inode, request):
                    continue
                end(p, requests, inode)
            p.wait_gone()
        t.true(mount.answers(), "the mount answers")
        return path, requests, inode
    raise TookTooLong(f"{request} did not come in {ATTEMPTS} attempts")


def killed_at(t, name, flags, request, act, prepare=None, mount=None):
    """A program that is killed at this request, does not wait for it, and whose file is closed meanwhile.  Returns the path."""
    def end(p, requests, inode):
        p.kill()
        p.wait_gone()
        if flags != os.O_RDONLY:    # through pages: then the file is open until they have been read
            requests.wait_for(inode, "RELEASE")

    return at_request(t, name, request, prepare or (lambda path: os.open(path, flags)), act, end, mount)[0]


def caught(t, path, inode, blocks, request, call):
    """Kills a program whose data is not stored while the request waits for that.  False: it had no room to write."""
    def prepare():
        fd = os.open(path, os.O_RDWR)
        blocks.write(fd)
        os.fsync(fd)    # a moment ago: so there is room reserved for more, most often
        return fd

    def act(fd):
        blocks.write(fd)
        call(fd)

    with Program(prepare, act) as p:
        requests = Requests(t.site.main_mount)
        with frozen(t.site.servers[0]):
            p.go()
            try:
                wait_until(lambda: requests.has(inode, "WRITE", request), 5, "a request to be caught")
            except TookTooLong:
                return False
            p.kill()
            p.wait_gone()
            requests.wait_for(inode, "RELEASE")
    return True


def catch(t, request, call):
    path = t.file("file", bytes(Blocks.BYTES))
    inode = os.stat(path).st_ino
    blocks, left, wrong = Blocks(), 20 if t.long else 3, []
    for _ in range(ATTEMPTS * left):
        if left:
            left -= caught(t, path, inode, blocks, request, call)
            wrong += blocks.wrong(path)
    t.equal(left, 0, "requests that were not caught")
    t.equal(wrong, [], "blocks")


@case
def a_sync_of_a_killed_program_ends_without_its_file(t):
    catch(t, "FSYNC", os.fsync)


@case
def a_seek_of_a_killed_program_ends_without_its_file(t):
    catch(t, "LSEEK", lambda fd: os.lseek(fd, 0, os.SEEK_DATA))


@case
def a_read_of_a_killed_program_ends_without_its_file(t):
    for name, flags in (("read", os.O_RDWR | os.O_APPEND), ("read_pages", os.O_RDONLY)):
        path = killed_at(t, name, flags, "READ", lambda fd, path: os.pread(fd, COLD, 0))
        t.content(path, cold_content(name))


@case
def a_look_for_locks_of_a_killed_program_ends_without_its_file(t):
    path = killed_at(t, "lock_test", os.O_RDWR, "GETLK", lambda fd, path: fcntl.fcntl(fd, fcntl.F_GETLK, sys_.flock_record(fcntl.F_WRLCK, 0, 0, 0)))
    t.content(path, cold_content("lock_test"))


@case
def an_open_of_a_killed_program_is_undone(t):
    path = killed_at(t, "open", os.O_RDONLY, "OPEN", lambda nothing, path: os.open(path, os.O_RDONLY), prepare=lambda path: None)
    t.content(path, cold_content("open"))


def killed_in_vain(t, name, request, act, prepare=lambda path: os.open(path, os.O_RDWR)):
    """What changes something is waited for, also by who is being killed."""
    def end(p, requests, inode):
        p.kill()
        t.true(t.site.main_mount.alive() and not p.is_gone(), f"{request}: the program waits")
        t.true(not requests.has(inode, "RELEASE"), f"{request}: its file is open")

    path, requests, inode = at_request(t, name, request, prepare, lambda thing, path: act(thing), end)
    requests.wait_for(inode, "RELEASE")
    return path


@case
def changes_of_a_killed_program_are_made(t):
    path = killed_in_vain(t, "fallocate", "FALLOCATE", lambda fd: os.posix_fallocate(fd, 0, 2 * COLD))
    t.content(path, cold_content("fallocate") + bytes(COLD))
    path = killed_in_vain(t, "copy", "COPY_FILE_RANGE", lambda fd: os.copy_file_range(fd, fd, COLD, 0, COLD))
    t.content(path, 2 * cold_content("copy"))
    path = killed_in_vain(t, "truncate", "SETATTR", lambda fd: os.ftruncate(fd, 5))
    t.content(path, cold_content("truncate")[:5])
    path = killed_in_vain(t, "xattr", "SETXATTR", lambda fd: os.setxattr(fd, "user.killed", b"yes"))
    t.equal(os.getxattr(path, "user.killed"), b"yes")


@case
def locks_of_a_program_that_is_killed_in_close_are_released(t):
    def locked(path):
        fd = os.open(path, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        return fd
    path = killed_in_vain(t, "flush", "FLUSH", os.close, locked)
    fd = t.open(path, os.O_RDWR)
    t.works(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


@case
def reads_of_killed_programs_on_mounts_that_are_not_told_of_opens(t):
    """On a read-only mount, and on a replica: its requests name no open file."""
    server, volume = t.site.servers[0], t.site.servers[0].volume("still")
    writer = server.mount(volume, name="writer-still", options=cache_of_its_own(t.site))
    make_cold(os.path.join(writer.point, "cold"))
    writer.umount()
    ways = [["--ro"], ["--ro", "--passthrough", "off", "--shared-locks"], ["--replica", f"--replica-dir={t.site.path('replica')}"]]
    for number, options in enumerate(ways):
        mount = server.mount(volume, name=f"still{number}", options=[*options, "--log-level", "debug"])
        name = COLD_NAMES[number]
        path = killed_at(t, name, os.O_RDONLY, "READ", lambda fd, path: os.pread(fd, COLD, 0), mount=mount)
        t.content(path, cold_content(name))
        mount.umount()
