"""make run and make stop, as root, as an ordinary user, and where nothing can be mounted."""
import os
import pwd
import shutil
import subprocess

import pytest

from epochfs import DROP_COPIES

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

# Devices for users as udev makes them, whatever the machine has, in a mount namespace of its own.
FUSE_FOR_USERS = f"""
set -e
{DROP_COPIES}
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
WITHOUT_FUSE = f"""
set -e
{DROP_COPIES}
mount -t tmpfs tmpfs "$1"
for node in null zero random urandom tty; do touch "$1/$node"; mount --bind "/dev/$node" "$1/$node"; done
mount --rbind "$1" /dev
shift
exec "$@"
"""


USER = pwd.getpwnam("nobody")
AS_USER = ["setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups"]


@pytest.fixture(scope="session")
def tree(site):
    """What make run needs of the source, with the program, where every user can get at it."""
    tree = site.path("tree")
    shutil.copytree(f"{ROOT}/scripts", f"{tree}/scripts")
    for name in ("README.md", "LICENSE", "Makefile", "docs/architecture.md", "build/epochfs"):
        os.makedirs(os.path.dirname(f"{tree}/{name}"), exist_ok=True)
        shutil.copy(site.binary if name == "build/epochfs" else f"{ROOT}/{name}", f"{tree}/{name}")
    return tree


@pytest.fixture
def place(site, tree, request):
    path = site.path(request.node.name)
    os.mkdir(path)
    yield path
    subprocess.run([f"{tree}/scripts/stop"], env=dict(os.environ, EPOCHFS_RUN_IN=path), timeout=120, check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def script(tree, name, place, prefix=(), code=0):
    done = subprocess.run([*prefix, f"{tree}/scripts/{name}"], env=dict(os.environ, EPOCHFS_RUN_IN=place), timeout=120,
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
    with open(f"{place}/run/data/lock", encoding="ascii") as f:
        return int(f.read())


def test_run_starts_everything_and_finds_it_again(tree, place):
    out = script(tree, "run", place)
    assert "Started a server" in out and "Created the volume training" in out and "Mounted it" in out
    assert "make stop" in out and "mnt2" in out
    assert os.path.ismount(f"{place}/mnt")
    with open(f"{tree}/LICENSE", "rb") as a, open(f"{place}/mnt/hello/LICENSE", "rb") as b:
        assert a.read() == b.read()
    first = server_of(place)
    out = script(tree, "run", place)
    assert "The server is running" in out and "The volume training is there" in out and "It is mounted" in out
    assert server_of(place) == first
    out = script(tree, "stop", place)
    assert "Unmounted mnt" in out and "Stopped the server" in out
    assert not os.path.exists(f"{place}/mnt")
    assert gone(first)
    assert "No server is running" in script(tree, "stop", place)


def test_run_after_stop_finds_the_old_files(tree, place):
    script(tree, "run", place)
    with open(f"{place}/mnt/mine", "w", encoding="ascii") as f:
        f.write("still here")
    script(tree, "stop", place)
    script(tree, "run", place)
    with open(f"{place}/mnt/mine", encoding="ascii") as f:
        assert f.read() == "still here"


def test_run_replaces_a_dead_mount_and_a_dead_server(site, tree, place):
    script(tree, "run", place)
    status = site.run([site.binary, "status", "--json", "--server", f"unix:{place}/run/data/epochfs.sock"])[1]
    mount = int(status.split('"pid": ')[1].split(",")[0])
    for pid in (mount, server_of(place)):
        os.kill(pid, 9)
    out = script(tree, "run", place)
    assert "Started a server" in out and "Mounted it" in out


def test_a_process_that_has_the_number_of_an_old_server_is_left_alone(tree, place):
    script(tree, "run", place)
    server = server_of(place)
    script(tree, "stop", place)
    data = f"{place}/run/data"
    other = subprocess.Popen(["sh", "-c", "read line", "serve", "--data", data], stdin=subprocess.PIPE)
    try:
        for name in ("data/lock", "server.pid"):
            with open(f"{place}/run/{name}", "w", encoding="ascii") as f:
                f.write(f"{other.pid}\n")
        assert "No server is running" in script(tree, "stop", place)
        assert other.poll() is None
        out = script(tree, "run", place)
        assert "Started a server" in out and server_of(place) not in (other.pid, server)
        assert "Stopped the server" in script(tree, "stop", place)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_server_that_was_started_by_hand_is_found(site, tree, place):
    server = site.server(os.path.basename(place), data=f"{place}/run/data")
    assert f"The server is running (process {server.process.pid})" in script(tree, "run", place)
    assert "Stopped the server" in script(tree, "stop", place)
    server.wanted = False
    assert server.wait_exit(10, "end") == 0
    assert "No server is running" in script(tree, "stop", place)


def in_namespace(site, program, name):
    """The words that run something after `program` in a mount namespace of its own."""
    folder = site.path(name)
    os.makedirs(folder, exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", program, "sh", folder]


def test_run_works_as_an_ordinary_user(site, tree, place):
    os.chown(place, USER.pw_uid, USER.pw_gid)
    out = script(tree, "run", place, [*in_namespace(site, FUSE_FOR_USERS, "devices"), *AS_USER])
    assert "read them back: they are the same" in out
    server = server_of(place)
    assert os.stat(f"/proc/{server}").st_uid == USER.pw_uid
    out = script(tree, "stop", place, ["nsenter", "--mount", "--root", f"--target={server}", *AS_USER])
    assert "Unmounted mnt" in out and "Stopped the server" in out
    assert gone(server)


def check_tour(out, reason):
    assert reason in out
    for words in ("volume list", "volume show training", "status", "fsck"):
        assert f"$ ./build/epochfs {words}\n" in out
    assert "make stop" in out and "mnt2" not in out


def test_run_without_dev_fuse_shows_the_command_line(site, tree, place):
    check_tour(script(tree, "run", place, in_namespace(site, WITHOUT_FUSE, "dev")), "There is no /dev/fuse here")
    script(tree, "stop", place)


def test_run_with_a_dev_fuse_for_root_only_shows_the_command_line(site, tree, place):
    os.chown(place, USER.pw_uid, USER.pw_gid)
    out = script(tree, "run", place, [*in_namespace(site, FUSE_FOR_ROOT, "devices"), *AS_USER])
    check_tour(out, "User nobody may not open /dev/fuse")
    script(tree, "stop", place)


def test_run_without_fusermount3_shows_the_command_line(site, tree, place):
    os.chown(place, USER.pw_uid, USER.pw_gid)
    tools = site.path("tools")
    os.mkdir(tools)
    for name in os.listdir("/usr/bin"):
        if not name.startswith("fusermount"):
            os.symlink(f"/usr/bin/{name}", f"{tools}/{name}")
    out = script(tree, "run", place, [*in_namespace(site, FUSE_FOR_USERS, "devices"), *AS_USER, "env", f"PATH={tools}"])
    check_tour(out, "There is no fusermount3 here")
    script(tree, "stop", place)


def test_run_where_mounting_is_forbidden_shows_the_command_line(tree, place):
    out = script(tree, "run", place, ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
    check_tour(out, "Operation not permitted")
    script(tree, "stop", place)


def test_what_run_shows_can_be_pasted(tree, place):
    out = script(tree, "run", place)
    commands = [line.strip() for line in out.split("Look around:")[1].splitlines() if line.startswith("    ")]
    assert len(commands) > 8 and "restore" in " ".join(commands) and "mnt2" in commands[-1]
    done = subprocess.run(["sh", "-e", "-c", "\n".join(commands)], cwd=tree, timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert os.path.ismount(f"{place}/mnt2") and os.path.exists(f"{place}/mnt/hello/LICENSE")
    assert "Unmounted mnt2" in script(tree, "stop", place)
    assert os.listdir(place) == ["run"] and os.path.exists(f"{place}/run/mount2.log")


def test_stop_removes_no_folder_with_something_in_it(tree, place):
    script(tree, "run", place)
    os.mkdir(f"{place}/mnt2")
    with open(f"{place}/mnt2/mine", "w", encoding="ascii"):
        pass
    script(tree, "stop", place)
    assert sorted(os.listdir(place)) == ["mnt2", "run"] and os.listdir(f"{place}/mnt2") == ["mine"]


def test_a_user_mounts_over_tcp_what_the_socket_refuses(site, tree, place):
    server = site.server("tcp", options=["--listen", "127.0.0.1:0"])
    server.volume("open")
    mount = server.mount("open")
    os.chmod(mount.point, 0o1777)
    mount.umount()
    with open(f"{server.data}/address", encoding="ascii") as f:
        address, = [a for a in f.read().split() if a.startswith("127.0.0.1:")]
    os.chown(place, USER.pw_uid, USER.pw_gid)
    commands = f"{tree}/build/epochfs mount open {place} --log-file /dev/null --server"
    inside = [*in_namespace(site, FUSE_FOR_USERS, "devices"), *AS_USER, "sh", "-e", "-c"]
    code, _, err = site.run([*inside, f"{commands} {server.address}"], check=False)
    assert code == 1 and "the user the server runs as" in err
    _, out, _ = site.run([*inside, f"{commands} {address}; echo mine >{place}/x; stat -c %U {place}/x; {tree}/build/epochfs umount {place}"])
    assert out == "nobody\n"
    assert server.stop() == 0
