"""mount -o remount, through mount(8) and its helper, in a mount namespace where the helper is installed."""
import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading

import pytest

from control import Control, socket_path, tcp_server
from epochfs import DROP_COPIES
from waiting import wait_until

NOBODY = 65534       # fusermount3 wants a user it knows

MACHINE = f"""
set -e
{DROP_COPIES}
mount -t tmpfs tmpfs /usr/sbin
ln -s "$1" /usr/sbin/mount.fuse.epochfs
echo ready
exec sleep infinity
"""


class Machine:
    """Commands and paths of a mount namespace."""

    def __init__(self, site, server, name):
        self.site, self.server, self.point, self.log = site, server, site.path(f"mnt-{name}"), site.path(f"{name}.log")
        os.makedirs(self.point, exist_ok=True)
        self.process = subprocess.Popen(["unshare", "--mount", "sh", "-c", MACHINE, "sh", site.binary], stdout=subprocess.PIPE, text=True)
        site.keeper.process(self.process.pid)
        assert self.process.stdout.readline() == "ready\n"

    def run(self, *words):
        """(exit code, what it said)."""
        code, out, err = self.site.run(["nsenter", "--mount", "--target", str(self.process.pid), *words], check=False,
                                       environment={"EPOCHFS_SERVER": self.server.address})
        return code, out + err

    def good(self, *words):
        code, said = self.run(*words)
        assert code == 0, (words, code, said)
        return said

    def path(self, *names):
        return os.path.join(f"/proc/{self.process.pid}/root{self.point}", *names)

    def mount(self, volume, *options):
        self.good(self.site.binary, "mount", volume, self.point, "--log-file", self.log, *options)

    def remount(self, options="", *words):
        return self.run("mount", *words, "-o", "remount" + (options and "," + options), self.point)

    def flags(self):
        with open(f"/proc/{self.process.pid}/mounts", encoding="utf-8") as f:
            line, = [line for line in f if f" {self.point} fuse.epochfs " in line]
        return [word for word in line.split()[3].split(",") if not re.match("user_id|group_id|default_perm|allow_other", word)]

    def status(self):
        return self.good(self.site.binary, "status", self.point)

    def umount(self):
        self.good(self.site.binary, "umount", self.point)

    def end(self):
        self.run("umount", "--lazy", self.point)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def machine(site, server, request):
    name = request.node.name.split("[")[0]
    machine = Machine(site, server, name[5:45])
    server.volume(name)
    machine.volume = name
    yield machine
    machine.end()


def write(path, data=b"x"):
    with open(path, "ab") as f:
        f.write(data)


def test_mount_8_makes_it_read_only_and_writable_again(machine):
    machine.mount(machine.volume)
    write(machine.path("f"))
    with open(machine.path("f"), "ab"):
        code, said = machine.remount("ro")
        assert code == 32 and f"cannot make {machine.point} read-only: files are open for writing, or deleted and still open" in said
        assert machine.flags() == ["rw", "noatime"]
    write(machine.path("deleted"))
    with open(machine.path("deleted"), "rb"):
        os.unlink(machine.path("deleted"))
        code, said = machine.remount("ro")
        assert code == 32 and "or deleted and still open; close them" in said
    assert machine.remount("ro") == (0, "")
    assert machine.flags() == ["ro", "noatime"]
    with pytest.raises(OSError, match="Read-only file system"):
        write(machine.path("f"))
    status = machine.status()
    assert f", volume {machine.volume}, read-only until it is remounted (mount -o remount,rw), process" in status
    assert "Unstored data" not in status, status      # figures that are not zero are shown
    assert machine.remount("rw") == (0, "")
    assert "read-only" not in machine.status()
    write(machine.path("f"))
    assert os.path.getsize(machine.path("f")) == 2
    machine.umount()
    with open(machine.log, encoding="utf-8") as f:
        told = [line.rsplit("was remounted: ", 1)[1].strip() for line in f if "was remounted" in line]
    assert told == ["ro, noatime", "rw, noatime"]


def test_what_is_not_named_stays(machine):
    machine.mount(machine.volume, "--strictatime", "-o", "nosuid,nodev")
    options = "Options      --strictatime -o nosuid -o nodev --log-file"
    for named, flags in (("", ["rw", "nosuid", "nodev"]), ("ro", ["ro", "nosuid", "nodev"]), ("rw,noexec", ["rw", "nosuid", "nodev", "noexec"]),
                         ("exec,dev", ["rw", "nosuid"]), ("nodiratime", ["rw", "nosuid", "nodiratime"]), ("diratime,nodev", ["rw", "nosuid", "nodev"])):
        assert machine.remount(named) == (0, "")
        assert machine.flags() == flags, named
        assert options in machine.status().replace("-o nodiratime ", ""), named
    assert machine.remount("relatime") == (0, "")
    assert machine.flags() == ["rw", "nosuid", "nodev", "relatime"]
    assert options.replace("strict", "rel") in machine.status()
    assert machine.remount("noatime") == (0, "")
    assert machine.flags() == ["rw", "nosuid", "nodev", "noatime"]
    machine.umount()


@pytest.mark.parametrize("named, flags, option", [("strictatime", [], "--strictatime"), ("noatime,relatime", ["relatime"], "--relatime"),
                                                  ("relatime,noatime", ["noatime"], None), ("defaults", ["noatime"], None),
                                                  ("nodiratime,relatime", ["nodiratime", "relatime"], "--relatime -o nodiratime")],
                         ids=["strictatime", "relatime", "noatime", "defaults", "nodiratime"])
def test_mount_8_names_access_times(site, server, named, flags, option):
    machine = Machine(site, server, "named-times")
    if "named-times" not in [volume["name"] for volume in server.json("volume", "list")]:
        server.volume("named-times")
    try:
        machine.good("mount", "-t", "fuse.epochfs", "named-times", machine.point, "-o", f"{named},log-file={machine.log}")
        assert machine.flags() == ["rw", *flags]
        assert f"Options      {option + ' ' if option else ''}--log-file" in machine.status()
        machine.umount()
    finally:
        machine.end()


def test_options_of_fstab_are_named_again_and_not_changed(machine, site):
    cache, behind, other = (site.path(f"remount-{name}") for name in ("cache", "behind", "other"))
    fstab = site.path("remount-fstab.txt")

    def line(options):
        with open(fstab, "w", encoding="ascii") as f:
            f.write(f"{machine.volume} {machine.point} fuse.epochfs _netdev,nofail,{options} 0 0\n")
    same = f"server={machine.server.address},cache-dir={cache},cache_size=20%,writeback={behind},log-file={machine.log},allow_other"
    line(same)
    machine.good("mount", "-T", fstab, machine.point)
    write(machine.path("f"), b"x" * 100000)
    # What the command does not name mount(8) takes from fstab, not from the mount; but access times stay where both name none.
    for named, flags in (("ro", ["ro", "noatime"]), ("relatime", ["rw", "relatime"]), ("nosuid", ["rw", "nosuid", "relatime"]),
                         ("rw", ["rw", "relatime"]), ("noatime", ["rw", "noatime"])):
        assert machine.remount(named, "-T", fstab) == (0, ""), named
        assert machine.flags() == flags, named
    for named in ("nosuid", "nodev"):
        machine.good(site.binary, "mount", machine.volume, machine.point, "-o", f"remount,{named}")
    assert machine.flags() == ["rw", "nosuid", "nodev", "noatime"], "without mount(8) what is not named stays"
    assert machine.remount("noatime", "-T", fstab) == (0, "")
    for changed, refused in ((same.replace("20%", "30%"), "--cache-size 30%"), (f"{same},cache-dir={other}", f"--cache-dir {other}"),
                             (f"{same},timeout=5s", "--timeout 5s"), (f"{same},no_allow_other", "--no-allow-other"),
                             (same.replace(machine.server.address, "127.0.0.1:1"), f"its server is {machine.server.address}")):
        line(changed)
        code, said = machine.remount("relatime", "-T", fstab)
        assert code == 32 and refused in said and "unmount it and mount it again" in said, (changed, code, said)
    assert machine.flags() == ["rw", "noatime"]
    machine.umount()


@pytest.mark.parametrize("options", [["--ro"], ["--ro", "--shared-locks"], ["--replica", "--replica-dir", "{}"]], ids=["ro", "locks", "replica"])
def test_a_mount_that_was_made_to_read_cannot_be_made_writable(site, server, options):
    machine = Machine(site, server, "made-to-read")
    volume = "made-to-read-" + options[-1].strip("-{}")
    server.volume(volume)
    machine.mount(volume, *(word.format(site.path("made-to-read-names")) for word in options))
    try:
        code, said = machine.remount("rw")
        assert code == 32 and f"cannot make {machine.point} writable: it was mounted with --ro or --replica" in said
        assert machine.remount() == (0, "")
        assert machine.remount("relatime") == (0, "")
        assert machine.flags() == ["ro", "relatime"]
        assert f", volume {volume}, read-only, process" in machine.status()
        machine.umount()
    finally:
        machine.end()


def test_what_cannot_be_remounted_says_so(machine, site, refused):
    refused(1, ["mount", machine.volume, site.path(), "-o", "remount,ro"], f"cannot remount {site.path()}: no volume is mounted there")
    machine.mount(machine.volume)
    code, said = machine.run(site.binary, "mount", "another", machine.point, "-o", "remount,ro")
    assert code == 1 and f"it is the volume {machine.volume}, not another" in said
    code, said = machine.run("setpriv", f"--reuid={NOBODY}", "--clear-groups", site.program_for_users(), "mount", machine.volume, machine.point, "-o", "remount,ro")
    assert code == 1 and f"cannot remount {machine.point}: only root can" in said
    code, said = machine.remount("relatme")
    assert code != 0 and "relatime" in said
    assert machine.flags() == ["rw", "noatime"]
    machine.umount()


@pytest.mark.skipif(not shutil.which("fusermount3"), reason="no fusermount3")
def test_a_user_s_mount_is_remounted_by_root(site):
    """Who mounted it may not let root in.  fusermount3 knows no strictatime, and has the kernel list relatime."""
    server = tcp_server(site, "nobody")
    server.volume("of-nobody")
    machine = Machine(site, server, "by-nobody")
    folder = site.path("by-nobody")
    os.mkdir(folder)
    for path in (folder, machine.point):
        os.chown(path, NOBODY, NOBODY)
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"XDG_RUNTIME_DIR=/run/user/{NOBODY}")
    mount = (*as_nobody, site.program_for_users(), "mount", "of-nobody", machine.point, "--server", server.tcp)
    try:
        # Here for everybody, as udev has it.
        machine.good("sh", "-c", "mknod -m 666 /usr/sbin/fuse c 10 229 && mount --bind /usr/sbin/fuse /dev/fuse")
        machine.good("sh", "-c", f"mount -t tmpfs tmpfs /run && mkdir -p /run/user/{NOBODY} && chown {NOBODY} /run/user/{NOBODY}")
        machine.mount("of-nobody")
        os.chmod(machine.path(), 0o777)
        machine.umount()
        machine.good(*mount, "--strictatime", "--no-allow-other", "--log-file", os.path.join(folder, "log"))
        machine.good(*as_nobody, "sh", "-c", f"echo written >{machine.point}/f")
        assert machine.flags() == ["rw", "nosuid", "nodev", "relatime"]
        code, said = machine.run(*mount, "-o", "remount,ro")
        assert code == 1 and "only root can" in said
        for options, flag, words in (("ro", "ro", ["--strictatime"]), ("rw", "rw", ["--strictatime"]), ("noatime", "rw", []), ("relatime", "rw", ["--relatime"])):
            assert machine.remount(options) == (0, ""), options
            assert machine.flags()[:3] == [flag, "nosuid", "nodev"]
            assert re.findall(r"--\w+atime", machine.good(*as_nobody, site.program_for_users(), "status", machine.point)) == words, options
            code, _ = machine.run(*as_nobody, "sh", "-c", f"echo written >>{machine.point}/f")
            assert (code == 0) == (flag == "rw"), options
        machine.good(*as_nobody, site.program_for_users(), "umount", machine.point)
        machine.good(*mount, "--strictatime", "-o", "nodiratime", "--log-file", os.path.join(folder, "log"))
        assert re.findall(r"-o nodiratime|--\w+atime", machine.good(*as_nobody, site.program_for_users(), "status", machine.point)) == ["--strictatime", "-o nodiratime"]
        machine.good(*as_nobody, site.program_for_users(), "umount", machine.point)
    finally:
        machine.end()
    assert server.stop() == 0


def write_unstored(machine, name):
    """What is written is not stored, as the server has ended in between."""
    with open(machine.path(name), "wb", buffering=0) as f:
        os.pwrite(f.fileno(), b"x", 0)    # room is reserved for what follows, too
        assert machine.server.stop() == 0
        f.write(b"x" * 100000)


def test_what_cannot_be_stored_keeps_it_writable(site):
    server = site.server("going")
    server.volume("going")
    machine = Machine(site, server, "going")
    try:
        machine.mount("going", "--timeout", "3s")
        write(machine.path("stored"))
        assert machine.remount("ro") == (0, "")
        assert machine.remount("rw") == (0, "")
        write_unstored(machine, "later")
        code, said = machine.remount("ro")
        assert code == 32 and "what was written to it could not be stored" in said and said.endswith("it stays as it is\n"), (code, said)
        assert machine.flags() == ["rw", "noatime"]
        # This stores nothing.  So it is read-only; but not all is well yet.
        assert machine.remount("ro", "-i") == (0, "")
        code, said = machine.remount("ro")
        assert code == 32 and "could not be stored" in said and "it stays as it is, read-only" in said, (code, said)
        assert machine.flags() == ["ro", "noatime"]
        server.start()
        wait_until(lambda: machine.remount("ro") == (0, ""), 30, "what was written to be stored")
        assert os.path.getsize(machine.path("later")) == 100000
        machine.umount()
    finally:
        machine.end()
    assert server.stop() == 0


class Between:
    """In place of the control socket of a mount: does something before the first answer, and hands on all."""

    def __init__(self, mount_point, action):
        self.path, self.action, self.done = socket_path(mount_point), action, False
        os.rename(self.path, self.path + ".behind")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            asking, _ = self.socket.accept()
            with asking, asking.makefile("rb") as lines:
                request = lines.readline()
                if not request:
                    return
                if not self.done:
                    self.done = True
                    self.action(asking)
                with Control(self.path + ".behind") as behind, contextlib.suppress(BrokenPipeError):
                    behind.send(request)
                    asking.sendall(behind.line() + b"\n")

    def end(self):
        Control(self.path).__exit__()
        self.thread.join()
        self.socket.close()
        os.rename(self.path + ".behind", self.path)


def test_a_link_that_comes_in_between_leads_to_no_other_mount(site, server):
    """Who owns the folder above the mount puts a link to another folder in its place, when it has been looked at."""
    above, other = site.path("linked"), site.path("linked-other")
    mount = server.mount(server.volume("linked"), name="linked", point=os.path.join(above, "mnt"))
    os.makedirs(os.path.join(other, "mnt"))

    def redirect(_):
        os.rename(above, above + ".moved")
        os.symlink(other, above)

    def flags(point):
        with open("/proc/self/mounts", encoding="utf-8") as f:
            line, = [line for line in f if f" {point} " in line]
        return set(line.split()[3].split(",")) & {"noexec", "nosuid", "nodev"}
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", os.path.join(other, "mnt")], check=True)
    try:
        between = Between(mount.point, redirect)
        try:
            code, _, said = site.run([site.binary, "mount", "linked", mount.point, "-o", "remount,noexec"], check=False)
        finally:
            between.end()
        assert between.done and flags(os.path.join(other, "mnt")) == set()
        assert (code, said) == (0, "") and flags(os.path.join(above + ".moved", "mnt")) == {"noexec"}
    finally:
        if os.path.islink(above):
            os.unlink(above)
            os.rename(above + ".moved", above)
        subprocess.run(["umount", os.path.join(other, "mnt")], check=True)
    mount.umount()


def test_an_answer_that_never_ends_is_not_waited_for(machine, site):
    enough = threading.Event()

    def drip(asking):
        with contextlib.suppress(BrokenPipeError):
            while not enough.wait(0.2):
                asking.sendall(b" ")

    machine.mount(machine.volume)
    between = Between(machine.path(), drip)
    try:
        code, said = machine.run(site.binary, "mount", machine.volume, machine.point, "-o", "remount,noexec")
        assert code == 1 and "the mount does not answer" in said, (code, said)
    finally:
        enough.set()
        between.end()
    machine.umount()
