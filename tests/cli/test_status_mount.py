"""epochfs status DIR, and the control socket behind it."""
import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess

import pytest

from control import Control, made_at, socket_path, tcp_server
from epochfs import DROP_COPIES
from users import ANNA, run_as
from waiting import wait_until


@pytest.fixture(scope="module")
def server(site):
    server = tcp_server(site, "status")
    server.volume("shown")
    return server


@pytest.fixture(scope="module")
def mount(site, server):
    return server.mount("shown", "shown", options=["--cache-dir", site.path("shown-cache"), "--cache-size", "64MiB"])


@pytest.fixture
def status(server):
    def ask(path, **options):
        return json.loads(server.cli("status", path, "--json", **options)[1])
    return ask


def test_it_is_a_table_for_people(mount, server):
    out = server.cli("status", mount.point)[1]
    assert f"Mount        {mount.point}, volume shown, process {mount.process.pid}" in out
    assert "Connection   connected" in out
    assert "64 MiB" in out


def figures_shown(server, point):
    """Label and value of what the table shows."""
    lines = server.cli("status", point)[1].splitlines()
    start = [i for i, line in enumerate(lines) if line.startswith("FIGURE ")]
    return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines[start[0] + 1:]) if start else {}


def test_only_figures_that_are_not_zero_are_shown(server, status):
    server.volume("quiet")
    mount = server.mount("quiet", "quiet", options=["--writeback", server.site.path("quiet-writeback")])
    before = figures_shown(server, mount.point)
    assert not {"Open files", "Unstored data", "Memory for writing", "at most", "Files not uploaded yet", "Cache hits"} & set(before), before
    assert "0" not in before.values() and "0 bytes" not in before.values()
    assert status(mount.point)["figures"]["cache_hits"] == 0       # a program gets them all
    with open(os.path.join(mount.point, "f"), "wb", buffering=0) as f:
        f.write(b"x" * 1000)
        shown = figures_shown(server, mount.point)
        assert shown["Open files"] == "1" and "Cache hits" not in shown, shown
    mount.umount()


def test_a_path_below_the_mount_will_do(mount, status):
    folder = os.path.join(mount.point, "a", "b")
    os.makedirs(folder)
    assert status(folder)["volume"] == "shown"
    with open(os.path.join(folder, "file"), "w", encoding="ascii"):
        assert status(os.path.join(folder, "file"))["figures"]["open_files"] == 1


def test_unstored_data_is_shown_until_it_is_stored(mount, status):
    with open(os.path.join(mount.point, "written"), "wb") as f:
        f.write(b"x" * 100000)
        f.flush()
        figures = status(mount.point)["figures"]
        assert (figures["unstored_files"], figures["unstored_bytes"]) == (1, 100000)
        os.fsync(f.fileno())
        figures = status(mount.point)["figures"]
        assert (figures["unstored_files"], figures["unstored_bytes"]) == (0, 0)


def test_the_options_are_those_that_make_the_same_mount_again(site, server, status):
    server.volume("told")
    point, cache, behind = site.path("told"), site.path("told's cache"), site.path("told-behind")
    os.mkdir(point)
    os.makedirs(site.path("told-names"))

    def mounted(*words):
        server.cli("mount", "told", point, *words)
        told = status(point)["options"]
        shown = server.cli("status", point)[1]
        assert f"Options      {told}\n" in shown, shown
        server.cli("umount", point)
        return shlex.split(told)
    log = ["--log-file", site.path("background.log")]
    for words in (["--timeout", "1h5m", "--cache-memory", "65MiB", "--readahead", "0", "--parallel", "3", "--cache-dir", cache, "--cache-size",
                   "100MiB", "--cache-min-free", "3%", "--cache-share", "25%", "--writeback", behind, "--writeback-size", "1GiB",
                   "--upload-limit", "1500", "--write-memory", "20000KiB", "--passthrough", "off", *log, "--log-level", "warn"],
                  ["--ro", "--shared-locks", "--relatime", "--cache-dir", cache, "--cache-size", "20%", "--fuse-uring", "off",
                   "--no-allow-other", "-o", "nosuid", "-o", "noexec", *log],
                  ["--replica", "--replica-dir", site.path("told-names"), "--replica-max-lag", "30m", *log],
                  ["--strictatime", "-o", "nodiratime", *log],
                  ["--writeback", behind, "--writeback-size", "5%", *log]):
        assert mounted(*words) == words
    # What is the default goes without saying.
    assert mounted("--timeout", "60s", "--cache-memory", "64MiB", "--cache-dir", cache, "--cache-size", "80%", "--passthrough", "auto",
                   "--log-level", "info") == ["--cache-dir", cache, *log]


# Decided by its release: of a negotiation that is broken the mount would say the same.
KERNEL_PASSES = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups())) >= (6, 9)
NOT_OFFERED = "the kernel does not offer it"


@pytest.mark.parametrize("words, reason", [
    (["--passthrough", "off", "--cache-dir", "{cache}"], "switched off"),
    ([], "there is no --cache-dir"),
    (["--ro", "--cache-dir", "{cache}"], "read-only mounts do if told to: --passthrough on"),
    (["--cache-dir", "/dev/missing/kept"], "no cache directory is in use" if KERNEL_PASSES else NOT_OFFERED)])
def test_why_nothing_is_passed_through_is_said(site, server, status, words, reason):
    if not server.cli("volume", "list")[1].count("unpassed"):
        server.volume("unpassed")
    one = server.mount("unpassed", "unpassed", options=[word.format(cache=site.path("unpassed-cache")) for word in words])
    assert status(one.point)["passthrough"] == {"on": False, "reason": reason}
    assert f"Passthrough  off: {reason}\n" in server.cli("status", one.point)[1]
    one.umount()


@pytest.mark.skipif(not KERNEL_PASSES, reason="the kernel cannot")
def test_what_is_passed_through_is_counted(site, server, status):
    server.volume("passed")
    one = server.mount("passed", "passed", options=["--cache-dir", site.path("passed-cache")])
    wait_until(lambda: status(one.point)["passthrough"] == {"on": True, "reason": None}, 30, "the lease of the volume")
    assert "Passthrough  on\n" in server.cli("status", one.point)[1]
    path = os.path.join(one.point, "large")
    with open(path, "wb") as f:
        f.write(os.urandom(3 << 20))
        os.fsync(f.fileno())

    def counted():
        figures = status(one.point)["figures"]
        return figures["passthrough_files"], figures["passthrough_opens"]
    assert counted() == (0, 0)
    server.cli("warm", path)

    def twice():
        """The kernel tells of the writer's close when it likes, and the lease may be away for a while: then it is not passed through."""
        before = counted()
        with open(path, "rb"), open(path, "rb"):
            files, opens = counted()
            return before[0] == 0 and files == 1 and opens - before[1] == 2
    wait_until(twice, 30, "the file to be passed through")
    opens = counted()[1]
    wait_until(lambda: counted() == (0, opens), 10, "the file to be closed")

    other = server.mount("passed", "passed-too")
    wait_until(lambda: status(one.point)["passthrough"] == {"on": False, "reason": "the volume has another mount"}, 30,
               "the lease to be gone")
    other.umount()
    one.umount()


def test_of_a_relaxed_volume_it_says_how_old_things_may_be(server, mount, status):
    server.volume("loose", "--consistency", "relaxed")
    loose = server.mount("loose", "loose")
    text = server.cli("status", loose.point)[1]
    assert "Consistency  relaxed: names, attributes and sizes are at most 1s old; contents are what others have stored" in text
    assert (status(loose.point)["relaxed"], status(loose.point)["age_max_ms"]) == (True, 1000)
    loose.umount()
    assert "Consistency" not in server.cli("status", mount.point)[1]
    assert (status(mount.point)["relaxed"], status(mount.point)["age_max_ms"]) == (False, 0)
    replica = server.mount("loose", "loose-replica", options=["--replica", "--replica-dir", server.site.path("loose-names")])
    assert "Consistency" not in server.cli("status", replica.point)[1] and status(replica.point)["age_max_ms"] is None
    replica.umount()


def test_it_answers_while_the_server_is_away(site):
    server = tcp_server(site, "goes")
    server.volume("gone")
    mount = server.mount("gone", "gone")
    shown = json.loads(server.cli("status", mount.point, "--json")[1])
    assert shown["connected"] is True
    server.kill()
    wait_until(lambda: not json.loads(server.cli("status", mount.point, "--json", timeout=10)[1])["connected"], 30,
               "the mount to say that the server is away")
    assert "Connection   away: last heard" in server.cli("status", mount.point, timeout=10)[1]
    server.start()
    wait_until(lambda: json.loads(server.cli("status", mount.point, "--json")[1])["connected"], 30, "the mount to be back")


def test_what_is_no_mount_is_refused(site, server, tmp_path):
    code, _, err = server.cli("status", str(tmp_path), check=False)
    assert (code, err) == (1, f"epochfs: cannot show the mount of {tmp_path}: it is on no EpochFS mount\n")
    code, _, err = server.cli("status", str(tmp_path / "missing"), check=False)
    assert code == 1 and "No such file" in err


def test_others_are_not_let_in(mount, server, site):
    program = site.program_for_users()

    def ask():
        done = subprocess.run([program, "status", mount.point], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
                              check=False)
        return done.returncode, done.stderr
    code, err = run_as(ANNA, ask)
    assert code == 1
    assert f"only root and the user who mounted {mount.point} may ask it" in err

    # Not even where the permissions of the socket would let them: the mount looks at who it is.
    path = socket_path(mount.point)
    mode = stat.S_IMODE(os.stat(path).st_mode)

    def connect():
        with Control(path) as control:
            control.send(b'{"op": "status"}\n')
            return control.line()
    os.chmod(path, 0o777)
    try:
        try:
            assert run_as(ANNA, connect) == b""
        except BrokenPipeError:
            pass
    finally:
        os.chmod(path, mode)
    with Control(path) as control:
        assert control.ask(op="status")["volume"] == "shown"


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"17", b"null", b'"status"', b'{"op": 3}', b'{"op": "no"}', b'{"op": "status", "op": "status"}', b"\0\0\0", b"\xff\xfe",
    b'{"op": "warm"}', b'{"op": "warm", "files": 3}', b'{"op": "warm", "files": [3]}', b'{"op": "warm", "files": [[1, 2]]}',
    b'{"op": "warm", "files": [[0, 0, 1]]}', b'{"op": "warm", "files": [[5, 9, 1]]}', b'{"op": "warm", "files": [[-5, 0, 1]]}',
    b'{"op": "warm", "files": [[99999999999999999999, 0, 1]]}', b'{"op": "warm", "files": [], "pin": true, "unpin": true}',
    b'{"op": "order"}', b'{"op": "order", "window": 0, "ahead": 1}', b'{"op": "order", "window": 5, "ahead": 0}',
    b'{"op": "order", "window": 5, "ahead": 2000000}', b'{"op": "next", "files": [[1, 2]]}', b'{"op": "progress"}',
    b'{"op": "next", "files": [[1, 2, 3]]}', b"[" * 5000])
def test_nonsense_is_refused_and_the_connection_goes_on(mount, line):
    with Control(socket_path(mount.point)) as control:
        control.send(line + b"\n")
        assert "error" in json.loads(control.line())
        assert control.ask(op="status")["volume"] == "shown"


def test_a_line_without_an_end_is_cut_off(mount):
    with Control(socket_path(mount.point)) as control:
        try:
            for _ in range(100):
                control.send(b"x" * 65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert b"the line is too long" in control.line() or control.line() == b""


def test_who_does_not_read_or_sends_half_a_line_holds_nobody_up(mount):
    path = socket_path(mount.point)
    half, deaf = Control(path), Control(path)
    with half, deaf:
        half.send(b'{"op": "sta')
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.setblocking(False)
        try:
            while True:
                deaf.send(b'{"op": "status"}\n' * 1000)
        except BlockingIOError:
            pass
        with Control(path) as control:
            assert control.ask(op="status")["volume"] == "shown"
        half.send(b'tus"}\n')
        assert json.loads(half.line())["volume"] == "shown"


def test_too_many_connections_are_refused_and_leave_room_when_they_go(mount):
    path = socket_path(mount.point)
    many = []
    try:
        for _ in range(64):
            many.append(Control(path))
            assert many[-1].ask(op="status")["volume"] == "shown"
        with Control(path) as control:
            assert b"too many connections" in control.line()
    finally:
        for control in many:
            control.socket.close()

    def again():
        with Control(path) as control:
            control.send(b'{"op": "status"}\n')
            return b"volume" in control.line()
    wait_until(again, 20, "room for another connection")


def test_the_socket_goes_with_the_mount(server):
    server.volume("leaving")
    mount = server.mount("leaving", "leaving")
    path = socket_path(mount.point)
    made = os.stat(path)
    assert stat.S_ISSOCK(made.st_mode)
    mount.umount()
    # The device's number, and so the name, may be another mount's by now.
    assert made_at(path) != made.st_ctime_ns


def test_what_a_killed_mount_left_is_replaced(server):
    server.volume("killed")
    mount = server.mount("killed", "killed")
    path = socket_path(mount.point)
    left = made_at(path)      # any other mount may remove it from when this one is dead
    mount.kill()
    mount.wait_dead()
    code, _, err = server.cli("status", mount.point, check=False)
    assert code == 1 and "was killed; mount it again, or epochfs umount it" in err
    mount.start()
    assert json.loads(server.cli("status", mount.point, "--json")[1])["pid"] == mount.process.pid
    # The device's number, and so the name, may be another mount's by now.
    assert made_at(path) != left


# A /dev/fuse that users may open; then as nobody: mount, ask, umount; root and nobody are let in, others are not.
USERS = DROP_COPIES + """
set -e
mount -t tmpfs tmpfs "$1/dev"
mknod "$1/dev/fuse" c 10 229
chmod 666 "$1/dev/fuse"
mount --bind "$1/dev/fuse" /dev/fuse
as() { user=$1; shift; setpriv --reuid "$user" --regid "$user" --clear-groups env -u XDG_RUNTIME_DIR HOME="$base" "$@"; }
base=$1 epochfs=$1/epochfs server=$2
cached() { as 65534 "$epochfs" mount users "$base/point" --server "$server" --log-file "$base/log" --cache-dir "$base/cache" "$@"; }
if cached --passthrough on; then exit 8; fi
cached
trap 'umount --lazy "$base/point"' EXIT
as 65534 "$epochfs" status "$base/point" --json
"$epochfs" status "$base/point" --json
if as 20002 "$epochfs" status "$base/point"; then exit 9; fi
as 65534 "$epochfs" umount "$base/point"
trap - EXIT
"""


def test_the_mount_of_a_user_is_his_and_roots(site, server):
    base = site.path("users")
    os.makedirs(os.path.join(base, "point"))
    os.mkdir(os.path.join(base, "dev"))
    for path in (base, os.path.join(base, "point")):
        os.chown(path, 65534, 65534)
    shutil.copy(site.binary, base)      # where every user can get at it
    server.volume("users")
    existed = os.path.exists("/tmp/epochfs-65534")
    out, err = site.run(["unshare", "--mount", "sh", "-c", USERS, "sh", base, server.tcp], 60)[1:]
    assert out.count('"volume": "users"') == 2
    assert "only root and the user who mounted" in err
    assert out.count(f'"reason": "{"it takes root (CAP_SYS_ADMIN)" if KERNEL_PASSES else NOT_OFFERED}"') == 2
    if KERNEL_PASSES:
        assert "cannot mount users: files cannot be passed through: that takes CAP_SYS_ADMIN" in err
    if not existed:
        os.rmdir("/tmp/epochfs-65534")      # which tells that nothing was left in it


def test_two_mounts_of_a_volume_are_told_apart(server, mount):
    other = server.mount("shown", "shown-too", options=["--ro"])
    for one in (mount, other):
        shown = json.loads(server.cli("status", one.point, "--json")[1])
        assert (shown["pid"], shown["mount_point"]) == (one.process.pid, one.point)
    assert shown["read_only"] is True
    assert "--ro" in shown["options"]
    other.umount()


def test_a_mount_that_is_stopped_is_not_waited_for(mount, server):
    mount.process.send_signal(19)
    try:
        code, _, err = server.cli("status", mount.point, check=False, timeout=60)
        assert code == 1 and "the mount does not answer" in err
    finally:
        mount.process.send_signal(18)
    assert json.loads(server.cli("status", mount.point, "--json")[1])["volume"] == "shown"


@pytest.mark.parametrize("option", ["--cache-size", "--cache-min-free", "--cache-share"])
def test_a_size_of_no_cache_is_a_mistake(server, site, option):
    code, _, err = server.cli("mount", "shown", site.base, option, "20%", check=False)
    assert code == 2
    assert f"{option} needs a cache: name a directory for it with --cache-dir" in err


@pytest.mark.parametrize("share", ["0%", "101%", "much", "-3", "", "5%%"])
def test_a_share_that_makes_no_sense_is_refused(server, site, share):
    code, _, err = server.cli("mount", "shown", site.base, "--cache-dir", site.path("unused"), "--cache-share", share, check=False)
    assert code == 2
    assert "it is a percentage of the cache" in err


def test_help_is_there_for_every_verb(server):
    text = server.cli("help")[1]
    verbs = [line.split()[0] for line in text[text.index("VERBS"):text.index("EXAMPLES")].splitlines()[1:]
             if line.startswith("    ") and not line.startswith("    epochfs")]
    assert "status" in verbs
    for verb in verbs:
        assert server.cli("help", verb)[1] == server.cli(verb, "--help")[1]
    assert server.cli("help", "volume", "create")[1] == server.cli("volume", "create", "--help")[1]
    code, _, err = server.cli("help", "statsu", check=False)
    assert code == 2 and "did you mean epochfs status?" in err
