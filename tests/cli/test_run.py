"""make run and make stop, as root, as an ordinary user, and without /dev/fuse."""
import os
import pwd
import subprocess

import pytest

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

# Devices for users as udev makes them, whatever the machine has, in a mount namespace of its own.
FUSE_FOR_USERS = """
set -e
mount -t tmpfs tmpfs "$1"
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
shift
exec "$@"
"""

# A /dev with the usual nodes but no fuse, in a mount namespace of its own.
WITHOUT_FUSE = """
set -e
mount -t tmpfs tmpfs "$1"
for node in null zero random urandom tty; do touch "$1/$node"; mount --bind "/dev/$node" "$1/$node"; done
mount --rbind "$1" /dev
shift
exec "$@"
"""


@pytest.fixture
def place(site, request):
    path = site.path(request.node.name)
    os.mkdir(path)
    yield path
    subprocess.run([f"{ROOT}/scripts/stop", site.binary], env=dict(os.environ, EPOCHFS_RUN_IN=path), timeout=120, check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def script(site, name, place, prefix=(), code=0):
    done = subprocess.run([*prefix, f"{ROOT}/scripts/{name}", site.binary], env=dict(os.environ, EPOCHFS_RUN_IN=place), timeout=120,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == code, done.stdout
    return done.stdout


def gone(pid):
    """Ended, though perhaps nobody has collected its exit code."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def server_of(place):
    with open(f"{place}/run/server.pid", encoding="ascii") as f:
        return int(f.read())


def test_run_starts_everything_and_finds_it_again(site, place):
    out = script(site, "run", place)
    assert "Started a server" in out and "Created the volume training" in out and "Mounted it" in out
    assert "make stop" in out and "mnt2" in out
    assert os.path.ismount(f"{place}/mnt")
    with open(f"{ROOT}/LICENSE", "rb") as a, open(f"{place}/mnt/hello/LICENSE", "rb") as b:
        assert a.read() == b.read()
    first = server_of(place)
    out = script(site, "run", place)
    assert "The server is running" in out and "The volume training is there" in out and "It is mounted" in out
    assert server_of(place) == first
    out = script(site, "stop", place)
    assert "Unmounted mnt" in out and "Stopped the server" in out
    assert not os.path.ismount(f"{place}/mnt")
    assert gone(first)
    assert "No server is running" in script(site, "stop", place)


def test_run_after_stop_finds_the_old_files(site, place):
    script(site, "run", place)
    with open(f"{place}/mnt/mine", "w", encoding="ascii") as f:
        f.write("still here")
    script(site, "stop", place)
    script(site, "run", place)
    with open(f"{place}/mnt/mine", encoding="ascii") as f:
        assert f.read() == "still here"


def test_run_replaces_a_dead_mount_and_a_dead_server(site, place):
    script(site, "run", place)
    status = site.run([site.binary, "status", "--json", "--server", f"unix:{place}/run/data/epochfs.sock"])[1]
    mount = int(status.split('"pid": ')[1].split(",")[0])
    for pid in (mount, server_of(place)):
        os.kill(pid, 9)
    out = script(site, "run", place)
    assert "Started a server" in out and "Mounted it" in out


def test_run_works_as_an_ordinary_user(site, place):
    user = pwd.getpwnam("nobody")
    os.chown(place, user.pw_uid, user.pw_gid)
    folder = site.path("devices")
    os.mkdir(folder)
    as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    out = script(site, "run", place, ["unshare", "--mount", "sh", "-c", FUSE_FOR_USERS, "sh", folder, *as_user])
    assert "read them back: they are the same" in out
    server = server_of(place)
    assert os.stat(f"/proc/{server}").st_uid == user.pw_uid
    out = script(site, "stop", place, ["nsenter", "--mount", f"--target={server}", *as_user])
    assert "Unmounted mnt" in out and "Stopped the server" in out
    assert gone(server)


def test_run_without_dev_fuse_shows_the_command_line(site, place):
    empty = site.path("dev")
    os.makedirs(empty, exist_ok=True)
    out = script(site, "run", place, ["unshare", "--mount", "sh", "-c", WITHOUT_FUSE, "sh", empty])
    assert "There is no /dev/fuse here" in out
    assert "epochfs volume list" in out and "training" in out and "make stop" in out
    script(site, "stop", place)
