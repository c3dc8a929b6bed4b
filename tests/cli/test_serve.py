"""epochfs serve and epochfs mount as a user starts them."""
import fcntl
import os
import pwd
import random
import re
import socket
import time

import pytest


def test_a_configuration_file_is_read_and_the_command_line_wins(site):
    path = site.path("server.conf")
    with open(path, "w", encoding="ascii") as f:
        f.write(f"# a comment\nlisten = 127.0.0.1:0\nstore = dir:{site.path('elsewhere')}\n")
    server = site.server("configured", options=["--config", path])
    assert os.path.isdir(site.path("elsewhere"))
    assert not os.path.isdir(f"{server.data}/objects")
    with open(f"{server.data}/address", encoding="ascii") as f:
        addresses = f.read().split()
    tcp, = [a for a in addresses if a.startswith("127.0.0.1:")]
    assert tcp.split(":")[1] != "0"
    site.run([site.binary, "status", "--server", tcp])
    assert server.stop() == 0


@pytest.mark.parametrize("line, text", [("sever = x", "unknown option sever"), ("listen", "line 1"), ("config = x", "command line")])
def test_a_wrong_line_stops_the_start(site, line, text):
    path = site.path("wrong.conf")
    with open(path, "w", encoding="ascii") as f:
        f.write(line + "\n")
    code, _, err = site.run([site.binary, "serve", "--data", site.path("never"), "--config", path], check=False)
    assert code in (1, 2)
    assert path in err and text in err, err


def test_the_world_is_not_listened_to(site):
    code, _, err = site.run([site.binary, "serve", "--data", site.path("open"), "--listen", "0.0.0.0:0"], check=False)
    assert code == 1
    assert "loopback" in err
    assert not os.path.exists(site.path("open")), "what was made for a server that was refused"


@pytest.mark.parametrize("words, text", [(["--listen", "nonsense"], "not an address"), (["--listen", "127.0.0.1:99999"], "not an address"),
                                         (["--store", "/objects"], "use dir:PATH"), (["--store", "dir:"], "use dir:PATH")])
def test_a_malformed_address_or_store_is_wrong_usage(site, words, text):
    code, _, err = site.run([site.binary, "serve", "--data", site.path("never"), *words], check=False)
    assert code == 2 and text in err and "--help" in err, err
    assert not os.path.exists(site.path("never"))


@pytest.mark.parametrize("address", ["nonsense", "localhost:", ":7070", "localhost:port", "unix:", "127.0.0.1:7070,nonsense", ","])
def test_a_malformed_server_is_wrong_usage(site, refused, address):
    refused(2, ["volume", "list", "--server", address], "unix:PATH or HOST:PORT")
    refused(2, ["mount", "files", site.path(), "--server", address], "unix:PATH or HOST:PORT")
    refused(2, ["mount", "files", site.path(), "-o", f"server={address.split(',')[-1]}"], "unix:PATH or HOST:PORT")


def test_a_second_unix_socket_is_served_and_goes_with_the_server(site):
    path = site.path("second.sock")
    server = site.server("twice", options=["--listen", f"unix:{path}"])
    with open(f"{server.data}/address", encoding="ascii") as f:
        assert f.read().split() == [server.address, f"unix:{path}"]
    server.volume("v")
    mount = server.mount("v", "by-second", address=f"unix:{path}")
    with open(f"{mount.point}/x", "w", encoding="ascii") as f:
        f.write("x")
    mount.umount()
    # That of a server that is there is not taken away, neither in the end.
    code, _, err = site.run([site.binary, "serve", "--data", site.path("rival"), "--listen", f"unix:{path}"], check=False)
    assert code == 1 and f"cannot listen on unix:{path}: another server listens there (it has {path}.lock locked)" in err, err
    assert not os.path.exists(site.path("rival"))
    assert os.stat(f"{path}.lock").st_mode & 0o777 == 0o600 and os.stat(path).st_mode & 0o777 == 0o666
    site.run([site.binary, "status", "--server", f"unix:{path}"])
    # That of one that was killed is.
    server.kill()
    assert os.path.exists(path)
    server.start()
    site.run([site.binary, "status", "--server", f"unix:{path}"])
    assert server.stop() == 0 and not os.path.exists(path) and not os.path.exists(f"{path}.lock")


def test_what_another_user_locks_or_leaves_beside_a_second_unix_socket_keeps_nobody_waiting(site):
    folder = site.path("for-all")
    os.mkdir(folder)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        server = site.server("unhindered", options=["--listen", f"unix:{folder}/s"])
        assert server.stop() == 0 and os.listdir(folder) == []
    finally:
        os.close(held)

    def refused(text):
        code, _, err = site.run([site.binary, "serve", "--data", site.path("rival"), "--listen", f"unix:{folder}/s"], timeout=30, check=False)
        assert code == 1 and f"cannot listen on unix:{folder}/s: {text}" in err and not os.path.exists(site.path("rival")), err
    lock = f"{folder}/s.lock"
    os.symlink(site.path("elsewhere-lock"), lock)
    refused("Too many levels of symbolic links")
    assert not os.path.exists(site.path("elsewhere-lock"))
    os.unlink(lock)
    with open(lock, "w", encoding="ascii"):
        os.chown(lock, pwd.getpwnam("nobody").pw_uid, -1)
    refused(f"{lock} is not ours; remove it")
    os.unlink(lock)
    with socket.socket(socket.AF_UNIX) as other:     # a program that locks nothing
        other.bind(f"{folder}/s")
        other.listen()
        refused("somebody listens there")
    assert os.listdir(folder) == ["s"]


def test_a_server_that_stops_leaves_the_second_unix_socket_of_another(site):
    path = site.path("replaced.sock")
    server = site.server("replaced", options=["--listen", f"unix:{path}"])
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        assert server.stop() == 0 and os.path.exists(path)


def test_a_second_unix_socket_takes_nothing_else_away(site):
    path = site.path("a-file")
    with open(path, "w", encoding="ascii") as f:
        f.write("mine")
    code, _, err = site.run([site.binary, "serve", "--data", site.path("rival"), "--listen", f"unix:{path}"], check=False)
    assert code == 1 and "something else than a socket" in err and os.path.getsize(path) == 4, err
    code, _, err = site.run([site.binary, "serve", "--data", site.path("rival"), "--listen", f"unix:{site.path('no', 'folder')}"], check=False)
    assert code == 1 and f"cannot listen on unix:{site.path('no', 'folder')}: No such file or directory" in err, err
    assert not os.path.exists(site.path("rival"))


def test_its_own_socket_may_be_named(site):
    server = site.server("same", options=["--listen", f"unix:{site.path('same')}/epochfs.sock"])
    site.run([site.binary, "status", "--server", server.address])
    assert server.stop() == 0 and not os.path.exists(server.socket)


def test_a_refused_start_leaves_a_directory_that_was_there(site, server):
    data = site.path("was-there")
    os.mkdir(data)
    with open(f"{data}/mine", "w", encoding="ascii"):
        pass
    code, _, err = site.run([site.binary, "serve", "--data", data, "--listen", "0.0.0.0:0"], check=False)
    assert code == 1 and os.path.exists(f"{data}/mine"), err


def test_a_second_server_is_refused(site, server):
    code, _, err = site.run([site.binary, "serve", "--data", server.data], check=False)
    assert code == 1 and server.data in err, err
    assert server.alive()


def test_a_server_killed_while_it_starts_does_not_keep_the_next_one_out(site):
    server = site.server("killed")
    server.volume("many")
    mount = server.mount("many")
    for i in range(30000):   # reading them all is most of a start
        os.close(os.open(os.path.join(mount.point, str(i)), os.O_CREAT | os.O_WRONLY))
    mount.umount()
    server.stop()
    began = time.monotonic()
    server.start()
    start_seconds = time.monotonic() - began
    chance = random.Random(20)
    for _ in range(40):
        server.kill()
        server.start(ready=False)
        time.sleep(chance.uniform(0, start_seconds))   # somewhere in its start: no moment is waited for
        server.kill()
        server.start()
    assert server.stop() == 0


def test_sd_notify_tells_when_it_is_ready_and_when_it_stops(site):
    path = site.path("notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(30)
        server = site.server("notified")
        server.stop()
        server.environment = {"NOTIFY_SOCKET": path}
        server.start()
        assert b"READY=1" in notify.recv(1000)
        assert server.stop() == 0
        assert b"STOPPING=1" in notify.recv(1000)


def test_mount_puts_itself_in_the_background_and_umount_ends_it(site, server, good):
    server.volume("behind")
    point = site.path("mnt-behind")
    os.mkdir(point)
    good("mount", "behind", point)
    with open(f"{point}/x", "w", encoding="ascii") as f:
        f.write("x")
    assert os.path.ismount(point)
    good("umount", point)
    assert not os.path.ismount(point)
    assert os.listdir(point) == []


def test_the_helper_of_mount_8_takes_its_options(site, server, good):
    server.volume("helped")
    helper = site.path("mount.fuse.epochfs")
    point = site.path("mnt-helped")
    os.symlink(site.binary, helper)
    os.mkdir(point)
    site.run([helper, "helped", point, "-o", f"ro,nodev,nosuid,_netdev,server={server.address},log-file={site.path('helped.log')}"])
    with pytest.raises(OSError):
        os.mkdir(f"{point}/x")
    with open("/proc/self/mounts", encoding="utf-8") as f:
        line, = [mount for mount in f if f" {point} " in mount]
    assert re.search(r" fuse\.epochfs ro,", line)
    good("umount", point)


def test_mounting_what_is_not_there_says_so(site, refused, mount):
    refused(1, ["mount", "nothing", site.path()], "cannot mount nothing: ")
    said = refused(1, ["mount", "files", site.path("no-such-directory")], f"(mkdir {site.path('no-such-directory')})")
    assert "bytes were read" not in said
    refused(1, ["umount", site.path()], "not")
