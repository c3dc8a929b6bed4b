"""Who may do what: mode bits, supplementary groups, search permission, access()."""
import errno as E
import os

import syscalls as sys_
from suite import case
from users import ANNA, BEN, ROOT, TEAM


def opens(path, flags):
    os.close(os.open(path, flags))


@case
def the_matrix_of_mode_bits(t):
    member = BEN.also_in(TEAM)
    for mode in (0o000, 0o400, 0o200, 0o600, 0o040, 0o020, 0o060, 0o004, 0o002, 0o006, 0o640, 0o604, 0o046, 0o642):
        path = t.file(f"{mode:03o}", b"x", mode)
        os.chown(path, ANNA.uid, TEAM)
        os.chmod(path, mode)
        for user, shift in ((ANNA, 6), (member, 3), (BEN, 0)):
            bits = mode >> shift & 7
            for flags, need in ((os.O_RDONLY, 4), (os.O_WRONLY, 2), (os.O_RDWR, 6)):
                if bits & need == need:
                    t.works(opens, path, flags, user=user, what=f"open {mode:03o} for {need}")
                else:
                    t.fails(E.EACCES, opens, path, flags, user=user, what=f"open {mode:03o} for {need}")
        t.works(opens, path, os.O_RDWR, user=ROOT)


@case
def folders_need_search_permission(t):
    d = t.folder("d", 0o711)
    t.file("d/f", b"x", 0o644)
    t.works(opens, t.path("d", "f"), os.O_RDONLY, user=ANNA)
    t.fails(E.EACCES, os.listdir, d, user=ANNA)
    os.chmod(d, 0o744)
    t.fails(E.EACCES, opens, t.path("d", "f"), os.O_RDONLY, user=ANNA)
    t.fails(E.EACCES, os.stat, t.path("d", "f"), user=ANNA)
    t.equal(t.works(os.listdir, d, user=ANNA), ["f"])
    os.chmod(d, 0o755)
    t.works(os.stat, t.path("d", "f"), user=ANNA)


@case
def creating_needs_write_and_search(t):
    for mode, allowed in ((0o777, True), (0o773, True), (0o775, False), (0o776, False), (0o772, False)):
        t.folder(f"{mode:o}", mode)
        for what, function, args in (("create", os.open, (os.O_CREAT | os.O_WRONLY, 0o644)), ("mkdir", os.mkdir, ()), ("mkfifo", os.mkfifo, ())):
            path = t.path(f"{mode:o}", what)
            if allowed:
                t.works(lambda p=path, f=function, a=args: f(p, *a) and None, user=ANNA, what=f"{what} in {mode:o}")
            else:
                t.fails(E.EACCES, lambda p=path, f=function, a=args: f(p, *a), user=ANNA, what=f"{what} in {mode:o}")


@case
def supplementary_groups_count(t):
    path = t.file("f", b"x", 0o060)
    os.chown(path, 0, TEAM)
    os.chmod(path, 0o060)
    t.fails(E.EACCES, opens, path, os.O_RDWR, user=ANNA)
    t.works(opens, path, os.O_RDWR, user=ANNA.also_in(TEAM))
    t.works(opens, path, os.O_RDWR, user=ANNA.also_in(1, 2, 3, 40000, TEAM))


@case
def access_agrees_with_open(t):
    path = t.file("f", b"x", 0o754, ANNA)
    t.equal(t.as_user(ANNA, os.access, path, os.R_OK | os.W_OK | os.X_OK), True)
    t.equal(t.as_user(BEN, os.access, path, os.R_OK), True)
    t.equal(t.as_user(BEN, os.access, path, os.W_OK), False)
    t.equal(t.as_user(BEN, os.access, path, os.X_OK), False)
    t.equal(t.as_user(BEN, os.access, t.path("none"), os.F_OK), False)
    plain = t.file("plain", b"x", 0o600)
    t.equal(os.access(plain, os.X_OK), False, "root needs one x bit to execute")


@case
def executing_needs_the_x_bit(t):
    script = t.file("script", b"#!/bin/sh\nexit 7\n", 0o755)

    def run():
        pid = os.fork()
        if pid == 0:
            try:
                os.execv(script, [script])
            except OSError as error:
                os._exit(100 + error.errno)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    t.equal(t.as_user(ANNA, run), 7)
    os.chmod(script, 0o644)
    t.equal(t.as_user(ANNA, run), 100 + E.EACCES)
    os.chmod(script, 0o711)
    t.true(t.as_user(ANNA, run) != 7, "a script that cannot be read does not run")


@case
def an_open_descriptor_keeps_its_rights(t):
    path = t.file("f", b"data", 0o666)

    def check():
        fd = os.open(path, os.O_RDWR)
        os.write(writer, b"1")
        os.read(go, 1)
        return os.pread(fd, 10, 0), os.pwrite(fd, b"D", 0)
    go, answer = os.pipe()
    ready, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(ANNA.gid)
            os.setuid(ANNA.uid)
            ok = check() == (b"data", 1)
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    os.read(ready, 1)
    os.chmod(path, 0)
    os.write(answer, b"1")
    t.equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
    for fd in (go, answer, ready, writer):
        os.close(fd)
    t.content(path, b"Data")


@case
def a_path_with_a_closed_folder_inside_is_refused(t):
    t.folder("a", 0o755)
    t.folder("a/b", 0o700)
    t.folder("a/b/c", 0o777)
    t.file("a/b/c/f", b"", 0o666)
    t.fails(E.EACCES, os.stat, t.path("a", "b", "c", "f"), user=ANNA)
    t.fails(E.EACCES, sys_.truncate, t.path("a", "b", "c", "f"), 0, user=ANNA)
    t.fails(E.EACCES, os.mkdir, t.path("a", "b", "c", "x"), user=ANNA)
