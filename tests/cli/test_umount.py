"""epochfs umount where something is in the way: a server that is away, a mount that was killed."""
import contextlib
import json
import os
import pwd
import socketserver
import subprocess
import threading
import time

import pytest

from control import Control, made_at, socket_path
from waiting import wait_until

TIMEOUT_S = 6
PATIENCE_S = 1.9 * TIMEOUT_S     # once, and not twice


@pytest.fixture
def lonely(site):
    """A server of its own, with a volume `v`; it is running again at the end."""
    server = site.server(f"lonely-{len(site.servers)}")
    server.volume("v")
    yield server
    if not server.alive():
        server.start()
    for mount in [m for m in site.mounts if m.server is server]:
        mount.discard()
    server.stop()


def waits_in_kernel(pid):
    """For a page, or for an answer."""
    with open(f"/proc/{pid}/wchan", encoding="ascii") as f:
        place = f.read()
    return any(word in place for word in ("folio", "fuse", "request_wait"))


def umount(site, point, *options):
    """(exit code, seconds, what it said, the second in which its first line came)."""
    began, first = time.monotonic(), None
    with subprocess.Popen([site.binary, "umount", point, *options], stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stderr:
            first = first if lines else time.monotonic() - began
            lines.append(line)
    return process.returncode, time.monotonic() - began, "".join(lines), first


def write_to_many(mount):
    """Files whose content is not stored when the server goes; they cannot be uploaded all at a time."""
    paths = [f"{mount.point}/{i}" for i in range(20)]
    files = [open(path, "wb", buffering=0) for path in paths]
    os.pwrite(files[0].fileno(), b"x", 0)    # room is reserved for what follows, too
    mount.server.kill()
    for file in files:
        file.write(b"x" * (256 << 10))
        file.close()
    return paths


def test_a_server_that_is_away_is_waited_for_once(site, lonely):
    lonely.volume("small", "--block-size", "64KiB")
    mount = lonely.mount("small", options=["--timeout", f"{TIMEOUT_S}s"])
    paths = write_to_many(mount)
    code, seconds, text, first = umount(site, mount.point)
    assert code == 1 and seconds < PATIENCE_S, (code, seconds, text)
    assert first < TIMEOUT_S and text.startswith(f"epochfs: storing what was written to {mount.point}; "), (first, text)
    assert f"waited for up to {TIMEOUT_S}s" in text and lonely.address in text
    assert "20 files, 5 MiB, of what was written to it could not be stored" in text and "it stays mounted" in text, text
    lonely.start()
    # Uploads that were under way when it gave up may fail meanwhile, which is told as well.
    wait_until(lambda: umount(site, mount.point)[0] == 0, 30, "everything to be stored")
    assert mount.wait_exit(10, "end") == 0
    mount.start()
    assert [os.path.getsize(path) for path in paths] == [256 << 10] * len(paths)


def test_what_is_not_known_to_be_stored_stays_mounted(site, lonely):
    """The kernel asks for attributes before it lets anybody look, and there is nobody to ask."""
    lonely.volume("relaxed", "--consistency", "relaxed")
    mount = lonely.mount("relaxed", options=["--timeout", f"{TIMEOUT_S}s"])
    lonely.kill()
    time.sleep(1.5)          # for so long attributes hold
    code, seconds, text, _ = umount(site, mount.point)
    assert code == 1 and seconds < PATIENCE_S, (code, seconds, text)
    assert "not known whether all that was written to it is stored" in text and mount.mounted(), text
    assert umount(site, mount.point, "--lazy")[0] == 0 and not mount.mounted()


@pytest.mark.parametrize("options", [["--ro"], ["--replica", "--replica-dir", "{}"]], ids=["ro", "replica"])
@pytest.mark.parametrize("reading", [False, True], ids=["idle", "reading"])
def test_what_can_only_read_does_not_wait_for_the_server(site, lonely, options, reading):
    mount = lonely.mount("v")
    with open(f"{mount.point}/f", "wb") as f:
        f.write(os.urandom(8 << 20))
    mount.umount()
    mount = lonely.mount("v", name="reader", options=[o.format(site.path("replicas")) for o in options])
    os.listdir(mount.point)
    lonely.kill()
    if reading:                # its requests go on in the mount when it is gone
        reader = subprocess.Popen(["cat", f"{mount.point}/f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: waits_in_kernel(reader.pid), 10, "the reader to wait for the mount")
        reader.kill()
        reader.wait()
    code, seconds, text, _ = umount(site, mount.point)
    assert code == 0 and seconds < 30, (code, seconds, text)
    assert "storing" not in text
    assert mount.wait_exit(1, "end") == 0


def test_a_mount_that_was_killed_leaves_no_socket(site, lonely):
    mount = lonely.mount("v")
    path = socket_path(mount.point)
    made = made_at(path)
    assert made
    mount.kill()
    mount.wait_dead()
    code, _, text, _ = umount(site, mount.point)
    assert code == 0, text
    # The device's number, and so the name, may be another mount's by now.
    assert made_at(path) != made


def test_a_link_is_followed(site, lonely):
    mount = lonely.mount("v")
    link = site.path("link-to-mount")
    os.symlink(mount.point, link)
    code, _, text, _ = umount(site, link)
    assert code == 0, text
    assert mount.wait_exit(10, "end") == 0
    code, _, text, _ = umount(site, link)
    assert code == 1 and f"cannot unmount {mount.point}: no volume is mounted there" in text, text


def test_what_is_mounted_beneath_it_is_named(site, lonely):
    mount = lonely.mount("v")
    below = f"{mount.point}/below"
    os.mkdir(below)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", below], check=True)
    try:
        code, _, text, _ = umount(site, mount.point)
        assert code == 1 and f"something is mounted on {below}; unmount that first" in text and mount.mounted(), text
    finally:
        subprocess.run(["umount", below], check=True)
    code, _, text, _ = umount(site, mount.point)
    assert code == 0, text
    assert mount.wait_exit(10, "end") == 0


def test_the_mount_of_another_user_is_not_his_to_end(site, lonely):
    user = pwd.getpwnam("nobody")
    mount = lonely.mount("v")
    program = site.program_for_users()
    code, _, err = site.run(["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", program, "umount",
                             mount.point], check=False)
    assert code == 1 and f"cannot unmount {mount.point}: only root and the user who mounted it may" in err and mount.mounted(), err


def status(site, mount):
    return json.loads(site.run([site.binary, "status", mount.point, "--json"])[1])


def test_with_write_back_each_wait_is_announced(site, lonely):
    mount = lonely.mount("v", options=["--timeout", f"{TIMEOUT_S}s", "--writeback", site.path("announced"), "--upload-limit", "1KiB"])
    with open(f"{mount.point}/f", "wb", buffering=0) as f:
        f.write(os.urandom(1 << 20))
        os.fsync(f.fileno())
    lonely.kill()
    # Once its lease is over, whoever looks at the mount waits for the server.
    wait_until(lambda: not status(site, mount)["alone"], 30, "the lease to end")
    code, seconds, text, _ = umount(site, mount.point)
    assert code == 1 and seconds < 2 * PATIENCE_S and not mount.mounted(), (code, seconds, text)
    first, again, end = text.splitlines()
    assert f"waited for up to {TIMEOUT_S}s" in first and f"waited for once more, for up to {TIMEOUT_S}s" in again, text
    assert "1 file, 1 MiB, is not uploaded" in end, text
    lonely.start()
    mount.start()
    mount.umount()


def written_back(site, server, name, *options):
    """A mount that uploads nothing by itself for long, and its write-back directory."""
    directory = site.path(name)
    return server.mount("v", name=name, options=["--timeout", f"{TIMEOUT_S}s", "--writeback", directory, "--upload-limit", "1KiB",
                                                 *options]), directory


def test_what_is_damaged_in_the_write_back_directory_is_told_as_that(site, lonely):
    mount, directory = written_back(site, lonely, "broken")
    for name in ("bad", "good"):
        with open(f"{mount.point}/{name}", "wb", buffering=0) as f:
            f.write(os.urandom(1 << 20))
            os.fsync(f.fileno())
    inode = os.stat(f"{mount.point}/bad").st_ino
    folder = status(site, mount)["writeback_folder"]
    spool, = (name for name in os.listdir(folder) if name.startswith(f"{inode:016x}."))
    with open(f"{folder}/{spool}", "r+b") as f:
        f.seek(300_000)
        byte = f.read(1)
        f.seek(300_000)
        f.write(bytes([byte[0] ^ 1]))
    # Another one who waits for it makes the mount try.
    other = lonely.mount("v", name="broken-other", options=["--timeout", "2s"])
    with pytest.raises(OSError), open(f"{other.point}/bad", "rb", buffering=0) as f:
        f.read(1)
    wait_until(lambda: status(site, mount)["figures"]["writeback_damaged_files"] == 1, 20, "the damage to be noticed")
    code, _, text, _ = umount(site, mount.point)
    assert code == 1 and not mount.mounted(), text
    assert text.splitlines()[-1] == f"epochfs: {mount.point} is unmounted, but the newest content of 1 file, 1 MiB, is not uploaded: 1 file is " \
        f'damaged in the write-back directory {folder}; see "The disk of a write-back directory is broken" in docs/operations.md'
    # As that one says, it would not be mounted with it again.
    mount.start(ready=False)
    assert mount.wait_exit(30, "refuse") != 0
    lonely.cli("writeback", "drop", directory, "--yes")


def test_what_is_only_left_in_the_write_back_directory_is_not_told_to_be_lost(site, lonely):
    """As on a disk that has become read-only, where nothing can be deleted."""
    mount, _ = written_back(site, lonely, "left")
    folder = status(site, mount)["writeback_folder"]
    left = f"{folder}/{0xff:016x}.{1:016x}"
    with open(left, "wb") as f:
        f.write(bytes(4096))
    code, _, text, _ = umount(site, mount.point)
    assert code == 1 and not mount.mounted(), text
    assert text.splitlines()[-1] == f"epochfs: {mount.point} is unmounted, and what its write-back held of 1 file, 4 KiB, is still in {folder}: " \
        "it is uploaded, unless epochfs writeback list names the file"
    mount.start()
    assert not os.path.exists(left)
    mount.umount()


def test_with_write_back_what_is_not_synced_stays_mounted(site, lonely):
    mount, _ = written_back(site, lonely, "unsynced")
    with open(f"{mount.point}/f", "wb", buffering=0) as f:
        f.write(b"x")       # room is reserved for what follows, too
        lonely.kill()
        f.write(b"x" * 100_000)
    code, seconds, text, _ = umount(site, mount.point)
    assert code == 1 and seconds < PATIENCE_S and mount.mounted(), (code, seconds, text)
    assert "1 file, 97.7 KiB, of what was written to it could not be stored" in text and "it stays mounted" in text, text
    # The help says so.
    said = " ".join(site.run([site.binary, "umount", "--help"])[1].split())
    assert "only if all that was written to it is synced; else it stays mounted, after one --timeout" in said
    lonely.start()
    wait_until(lambda: umount(site, mount.point)[0] == 0, 30, "everything to be stored")


@pytest.fixture
def elsewhere(site):
    """elsewhere(mount) starts a process in a mount namespace of its own, which has a copy of this mount and of no other; it runs what it
    is told."""
    held = []

    def start(mount):
        # What other cases, and other suites, have mounted is theirs to unmount.
        script = "awk '$3 == \"fuse.epochfs\" && $2 != point { print $2 }' point=\"$1\" /proc/mounts | xargs -r umount --lazy; " \
            "echo ready; while read l; do eval \"$l\"; echo done; done"
        process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", mount.point],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        site.keeper.process(process.pid)
        held.append(process)
        assert process.stdout.readline() == "ready\n"
        return process
    yield start
    for process in held:
        process.kill()
        process.wait()


def umount_bounded(site, point):
    """(exit code, what it said)."""
    code, _, text = site.run([site.binary, "umount", point], timeout=40, check=False)
    return code, text


def tell(process, command):
    process.stdin.write(f"{command}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize("options", [[], ["--ro"], ["--writeback", "{}"]], ids=["rw", "ro", "writeback"])
def test_a_container_that_has_a_copy_of_the_mount_goes_on(site, lonely, elsewhere, options):
    mount = lonely.mount("v", name=f"held-{len(site.mounts)}", options=[o.format(site.path("held-writeback")) for o in options])
    writes = "--ro" not in options
    if writes:
        with open(f"{mount.point}/before", "wb") as f:
            f.write(b"x" * 100_000)
    container = elsewhere(mount)
    code, text = umount_bounded(site, mount.point)
    assert code == 0 and not mount.mounted() and mount.alive(), text
    assert text.splitlines()[-1].startswith(f"epochfs: {mount.point} is unmounted here, and all that was written to it is stored.  Its process "
                                            f"({mount.process.pid}) goes on until nobody has it any more: "), text
    assert f"process {container.pid} (sh) has it on {mount.point}, in a mount namespace of its own (a container)" in text, text
    if writes:
        # It was stored before that was said: the process that is killed could not do it any more.
        tell(container, f"echo after > {mount.point}/after && sync {mount.point}/after")
        other = lonely.mount("v", name=f"look-{mount.name}")
        assert os.path.getsize(f"{other.point}/before") == 100_000
        with open(f"{other.point}/after", encoding="ascii") as f:
            assert f.read() == "after\n"
        other.umount()
        # What is not stored when the last copy goes is stored then.
        tell(container, f"echo last > {mount.point}/last")
    else:
        tell(container, f"ls {mount.point} > /dev/null")
    container.kill()
    container.wait()
    assert mount.wait_exit(30, "end") == 0
    if writes:
        mount.start()
        with open(f"{mount.point}/last", encoding="ascii") as f:
            assert f.read() == "last\n"
        mount.umount()


def test_a_mount_that_is_on_another_directory_as_well_is_named(site, lonely):
    mount = lonely.mount("v")
    again = site.path("bound")
    os.makedirs(again, exist_ok=True)
    subprocess.run(["mount", "--bind", mount.point, again], check=True)
    try:
        code, text = umount_bounded(site, mount.point)
        assert code == 0 and not mount.mounted() and mount.alive(), text
        assert text.endswith(f"any more: it is still mounted on {again}\n"), text
        code, text = umount_bounded(site, again)
        assert code == 0, text
        assert mount.wait_exit(10, "end") == 0
    finally:
        subprocess.run(["umount", "--quiet", again], check=False)


def test_what_is_not_known_to_be_stored_is_told_where_a_container_has_the_mount(site, lonely, elsewhere):
    """Its process cannot be asked."""
    mount = lonely.mount("v", name="held-silent")
    with open(f"{mount.point}/f", "wb") as f:
        f.write(b"x" * 1000)
    container = elsewhere(mount)
    os.unlink(socket_path(mount.point))
    code, text = umount_bounded(site, mount.point)
    assert code == 1 and not mount.mounted() and mount.alive(), text
    assert f"{mount.point} is unmounted here, but not all that was written to it is known to be stored" in text, text
    assert f"process {container.pid} (sh) has it on {mount.point}" in text, text
    container.kill()
    container.wait()
    assert mount.wait_exit(30, "end") == 0


@pytest.fixture
def slow_to_store(site):
    """slow_to_store(mount) stands between the mount and who asks it: what is stored is told only once somebody has asked for the mount's
    status after he asked for that."""
    started = []

    def start(mount):
        path = socket_path(mount.point)
        real = f"{path}.real"
        asked, again = threading.Event(), threading.Event()

        class Relay(socketserver.StreamRequestHandler):
            def handle(self):
                with Control(real, 60) as inside:
                    for line in self.rfile:
                        inside.send(line)
                        answer = json.loads(inside.line())
                        if json.loads(line)["op"] == "store":
                            asked.set()
                            again.wait(60)
                        elif asked.is_set():
                            again.set()
                        else:
                            answer["timeout_ms"] = 0     # it is not waited for longer than it takes to answer
                        with contextlib.suppress(BrokenPipeError):
                            self.wfile.write(json.dumps(answer).encode() + b"\n")
        os.rename(path, real)
        relay = socketserver.ThreadingUnixStreamServer(path, Relay)
        threading.Thread(target=relay.serve_forever).start()
        started.append((relay, path, real, again))
        return again
    yield start
    for relay, path, real, again in started:
        again.set()
        relay.shutdown()
        relay.server_close()
        for name in (path, real):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def test_an_upload_that_takes_long_is_waited_for_where_a_container_has_the_mount(site, lonely, elsewhere, slow_to_store):
    mount = lonely.mount("v", name="held-long", options=["--writeback", site.path("held-long-writeback")])
    with open(f"{mount.point}/f", "wb") as f:
        f.write(b"x" * 1000)
    container = elsewhere(mount)
    again = slow_to_store(mount)
    code, text = umount_bounded(site, mount.point)
    assert code == 0 and again.is_set() and mount.alive(), text
    assert f"{mount.point} is unmounted here, and all that was written to it is stored" in text, text
    container.kill()
    container.wait()
    assert mount.wait_exit(30, "end") == 0
