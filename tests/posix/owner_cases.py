"""chmod and chown: who may, and what happens to setuid and setgid."""
import errno as E
import os

import syscalls as sys_
from suite import case
from users import ANNA, BEN, TEAM


def mode(path):
    return os.stat(path).st_mode & 0o7777


@case
def every_mode_can_be_set(t):
    path = t.file("f")
    for bits in (0, 0o777, 0o7777, 0o4711, 0o2755, 0o1644, 0o604):
        os.chmod(path, bits)
        t.mode(path, bits)
    d = t.folder("d")
    for bits in (0o1777, 0o2775, 0o3777, 0o700):
        os.chmod(d, bits)
        t.mode(d, bits)


@case
def only_the_owner_changes_the_mode(t):
    path = t.file("f", b"", 0o666, ANNA)
    t.fails(E.EPERM, os.chmod, path, 0o600, user=BEN)
    t.works(os.chmod, path, 0o640, user=ANNA)
    t.mode(path, 0o640)
    t.fails(E.ENOENT, os.chmod, t.path("none"), 0o600)
    t.fails(E.ENOTDIR, os.chmod, t.path("f", "x"), 0o600)


@case
def setgid_falls_off_for_an_owner_outside_the_group(t):
    path = t.file("f", b"", 0o755)
    os.chown(path, ANNA.uid, TEAM)
    t.works(os.chmod, path, 0o2755, user=ANNA)
    t.mode(path, 0o755)
    t.works(os.chmod, path, 0o2755, user=ANNA.also_in(TEAM))
    t.mode(path, 0o2755)


@case
def only_root_gives_files_away(t):
    path = t.file("f", b"", 0o644, ANNA)
    t.fails(E.EPERM, os.chown, path, BEN.uid, -1, user=ANNA)
    t.fails(E.EPERM, os.chown, path, -1, TEAM, user=ANNA)
    t.works(os.chown, path, -1, TEAM, user=ANNA.also_in(TEAM))
    t.owner(path, ANNA.uid, TEAM)
    t.fails(E.EPERM, os.chown, path, -1, BEN.gid, user=BEN)
    os.chown(path, 4000000000, 4000000001)
    t.owner(path, 4000000000, 4000000001)
    os.chown(path, -1, 5)
    t.owner(path, 4000000000, 5)


@case
def chown_clears_setuid_and_setgid(t):
    path = t.file("f", b"", 0o6755)
    os.chmod(path, 0o6755)
    os.chown(path, ANNA.uid, ANNA.gid)
    t.mode(path, 0o755)
    os.chmod(path, 0o6745)
    os.chown(path, BEN.uid, BEN.gid)
    t.mode(path, 0o2745, "setgid without group execution is a lock mark and stays")
    os.chmod(path, 0o6755)
    t.works(os.chown, path, BEN.uid, BEN.gid, user=BEN, what="chown to oneself")
    t.mode(path, 0o755)
    d = t.folder("d")
    os.chmod(d, 0o6755)
    os.chown(d, ANNA.uid, ANNA.gid)
    t.mode(d, 0o6755, "folders keep theirs")


@case
def writing_clears_setuid_and_setgid(t):
    def write(path):
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"x")
        os.close(fd)
    for name, change in (("write", write), ("truncate", lambda p: sys_.truncate(p, 1)),
                         ("open-trunc", lambda p: os.close(os.open(p, os.O_WRONLY | os.O_TRUNC)))):
        path = t.file(name, b"abc")
        os.chmod(path, 0o6777)
        t.works(change, path, user=ANNA, what=name)
        t.mode(path, 0o777, f"mode after {name} by another user")
        os.chmod(path, 0o6777)
        change(path)
        t.mode(path, 0o6777, f"mode after {name} by root")


@case
def chmod_and_chown_move_ctime_only(t):
    path = t.file("f", b"x")
    for name, change in (("chmod", lambda: os.chmod(path, 0o600)), ("chown", lambda: os.chown(path, 5, 6))):
        before = os.stat(path)
        t.tick()
        change()
        after = os.stat(path)
        t.true(after.st_ctime_ns > before.st_ctime_ns, f"{name} moves ctime")
        t.equal((after.st_mtime_ns, after.st_atime_ns), (before.st_mtime_ns, before.st_atime_ns), f"{name} leaves the others")


@case
def fchmod_and_fchown_work_on_descriptors(t):
    path = t.file("f")
    fd = t.open(path)
    os.fchmod(fd, 0o611)
    os.fchown(fd, 9, 10)
    t.mode(path, 0o611)
    t.owner(path, 9, 10)


@case
def changes_are_seen_through_every_name(t):
    path = t.file("f")
    os.link(path, t.path("g"))
    os.chmod(path, 0o612)
    os.chown(t.path("g"), 3, 4)
    t.mode(t.path("g"), 0o612)
    t.owner(path, 3, 4)


@case
def setgid_without_group_execution_falls_to_a_writer_outside_the_group(t):
    def write(path):
        with open(path, "r+b", buffering=0) as f:
            f.write(b"x")

    for bits, what in ((0o6666, "for nobody"), (0o6766, "for the owner")):
        path = t.file("f", b"", 0o666)
        os.chown(path, ANNA.uid, TEAM)
        os.chmod(path, bits)
        t.works(write, path, user=BEN.also_in(TEAM))
        t.mode(path, bits & ~0o4000, f"in the group, executable {what}")
        t.works(write, path, user=BEN)
        t.mode(path, bits & ~0o6000, f"outside, executable {what}")
        os.chmod(path, bits)
        t.works(os.truncate, path, 9, user=BEN)
        t.mode(path, bits & ~0o6000, f"truncated, executable {what}")
