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

# The same, with one that is for root only.
FUSE_FOR_ROOT = FUSE_FOR_USERS.replace("666", "600")

# A /dev with the usual nodes but no fuse, in a mount namespace of its own.
WITHOUT_FUSE = """
set -e
mount -t tmpfs tmpfs "$1"
for node in null zero random urandom tty; do touch "$1/$node"; mount --bind "/dev/$node" "$1/$node"; done
mount --rbind "$1" /dev
shift
exec "$@"
"""


USER = pwd.getpwnam("nobody")
AS_USER = ["setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups"]


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


def in_namespace(site, program, name):
    """The words that run something after `program` in a mount namespace of its own."""
    folder = site.path(name)
    os.makedirs(folder, exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", program, "sh", folder]


def test_run_works_as_an_ordinary_user(site, place):
    os.chown(place, USER.pw_uid, USER.pw_gid)
    out = script(site, "run", place, [*in_namespace(site, FUSE_FOR_USERS, "devices"), *AS_USER])
    assert "read them back: they are the same" in out
    server = server_of(place)
    assert os.stat(f"/proc/{server}").st_uid == USER.pw_uid
    out = script(site, "stop", place, ["nsenter", "--mount", f"--target={server}", *AS_USER])
    assert "Unmounted mnt" in out and "Stopped the server" in out
    assert gone(server)


def check_tour(site, out, reason):
    assert reason in out
    for words in ("volume list", "volume show training", "status", "fsck"):
        assert f"$ {site.binary} {words}\n" in out or f"$ ./{os.path.relpath(site.binary, ROOT)} {words}\n" in out
    assert "make stop" in out and "mnt2" not in out


def test_run_without_dev_fuse_shows_the_command_line(site, place):
    check_tour(site, script(site, "run", place, in_namespace(site, WITHOUT_FUSE, "dev")), "There is no /dev/fuse here")
    script(site, "stop", place)


def test_run_with_a_dev_fuse_for_root_only_shows_the_command_line(site, place):
    os.chown(place, USER.pw_uid, USER.pw_gid)
    out = script(site, "run", place, [*in_namespace(site, FUSE_FOR_ROOT, "devices"), *AS_USER])
    check_tour(site, out, "User nobody may not open /dev/fuse")
    script(site, "stop", place)


def test_run_without_fusermount3_shows_the_command_line(site, place):
    os.chown(place, USER.pw_uid, USER.pw_gid)
    tools = site.path("tools")
    os.mkdir(tools)
    for name in os.listdir("/usr/bin"):
        if not name.startswith("fusermount"):
            os.symlink(f"/usr/bin/{name}", f"{tools}/{name}")
    out = script(site, "run", place, [*in_namespace(site, FUSE_FOR_USERS, "devices"), *AS_USER, "env", f"PATH={tools}"])
    check_tour(site, out, "There is no fusermount3 here")
    script(site, "stop", place)


def test_run_where_mounting_is_forbidden_shows_the_command_line(site, place):
    out = script(site, "run", place, ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
    check_tour(site, out, "Operation not permitted")
    script(site, "stop", place)


def test_what_run_shows_can_be_pasted(site, place):
    out = script(site, "run", place)
    commands = [line.strip() for line in out.split("Look around:")[1].splitlines() if line.startswith("    ")]
    assert len(commands) > 8 and "restore" in " ".join(commands) and "mnt2" in commands[-1]
    done = subprocess.run(["sh", "-e", "-c", "\n".join(commands)], cwd=ROOT, timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert os.path.ismount(f"{place}/mnt2") and os.path.exists(f"{place}/mnt/hello/LICENSE")
    assert "Unmounted mnt2" in script(site, "stop", place)


def test_a_user_mounts_over_tcp_what_the_socket_refuses(site, place):
    server = site.server("tcp", options=["--listen", "127.0.0.1:0"])
    server.volume("open")
    mount = server.mount("open")
    os.chmod(mount.point, 0o1777)
    mount.umount()
    with open(f"{server.data}/address", encoding="ascii") as f:
        address, = [a for a in f.read().split() if a.startswith("127.0.0.1:")]
    os.chown(place, USER.pw_uid, USER.pw_gid)
    commands = f"{site.binary} mount open {place} --log-file /dev/null --server"
    inside = [*in_namespace(site, FUSE_FOR_USERS, "devices"), *AS_USER, "sh", "-e", "-c"]
    code, _, err = site.run([*inside, f"{commands} {server.address}"], check=False)
    assert code == 1 and "the user the server runs as" in err
    _, out, _ = site.run([*inside, f"{commands} {address}; echo mine >{place}/x; stat -c %U {place}/x; {site.binary} umount {place}"])
    assert out == "nobody\n"
    assert server.stop() == 0
