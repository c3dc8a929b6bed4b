"""Device nodes, fifos and sockets."""
import errno as E
import os
import socket
import stat

import syscalls as sys_
from suite import case
from users import ANNA


@case
def every_kind_of_node_is_what_it_was_made(t):
    kinds = {"fifo": (stat.S_IFIFO, 0), "char": (stat.S_IFCHR, os.makedev(1, 3)), "block": (stat.S_IFBLK, os.makedev(7, 200)),
             "socket": (stat.S_IFSOCK, 0), "file": (stat.S_IFREG, 0), "big": (stat.S_IFCHR, os.makedev(3000, 70000))}
    for name, (kind, device) in kinds.items():
        sys_.mknod(t.path(name), kind | 0o640, device)
        st = os.lstat(t.path(name))
        t.equal(stat.S_IFMT(st.st_mode), kind, f"kind of {name}")
        t.mode(t.path(name), 0o640)
        if device:
            t.equal(st.st_rdev, device, f"device of {name}")
        t.fails(E.EEXIST, sys_.mknod, t.path(name), kind | 0o640, device)


@case
def a_character_device_works(t):
    sys_.mknod(t.path("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    fd = t.works(os.open, t.path("null"), os.O_RDWR)
    if fd is not None:
        t.equal(os.write(fd, b"gone"), 4)
        t.equal(os.read(fd, 10), b"")
        os.close(fd)


@case
def a_fifo_carries_bytes(t):
    os.mkfifo(t.path("fifo"), 0o600)
    reader = t.open(t.path("fifo"), os.O_RDONLY | os.O_NONBLOCK)
    writer = t.open(t.path("fifo"), os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"through")
    t.equal(os.read(reader, 100), b"through")
    t.equal(os.stat(t.path("fifo")).st_size, 0)


@case
def a_fifo_without_reader_is_enxio(t):
    os.mkfifo(t.path("fifo"), 0o600)
    t.fails(E.ENXIO, os.open, t.path("fifo"), os.O_WRONLY | os.O_NONBLOCK)


@case(lasting=False)
def a_unix_socket_can_be_bound_and_reached(t):
    os.chdir(t.dir)
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with server, client:
        server.bind("sock")
        server.listen(1)
        t.true(stat.S_ISSOCK(os.lstat("sock").st_mode), "it is a socket")
        client.connect("sock")
        peer, _ = server.accept()
        with peer:
            client.send(b"hello")
            t.equal(peer.recv(10), b"hello")
        t.fails(E.EADDRINUSE, socket.socket(socket.AF_UNIX).bind, "sock")
    os.unlink("sock")


@case
def users_may_make_fifos_but_no_devices(t):
    t.works(os.mkfifo, t.path("fifo"), 0o600, user=ANNA)
    t.owner(t.path("fifo"), ANNA.uid, ANNA.gid)
    t.fails(E.EPERM, sys_.mknod, t.path("dev"), stat.S_IFCHR | 0o600, os.makedev(1, 3), user=ANNA)
    t.works(sys_.mknod, t.path("plain"), stat.S_IFREG | 0o600, 0, user=ANNA)


@case
def nodes_rename_link_and_unlink_like_files(t):
    os.mkfifo(t.path("a"), 0o600)
    os.link(t.path("a"), t.path("b"))
    os.rename(t.path("a"), t.path("c"))
    t.equal(os.stat(t.path("c")).st_nlink, 2)
    os.unlink(t.path("b"))
    t.equal(t.names(), ["c"])
