"""The control socket of a mount, and mounts over TCP, which cache packs."""
import json
import os
import socket


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tcp_server(site, name):
    """A server whose mounts come over TCP."""
    address = f"127.0.0.1:{free_port()}"
    server = site.server(name, options=["--listen", address])
    server.tcp = address
    return server


def socket_path(point):
    device = os.stat(point).st_dev
    return f"/run/epochfs/{os.major(device)}-{os.minor(device)}.sock"


def made_at(path):
    """When the socket was made; None if it is gone.  Any other mount removes the ones of mounts that were killed."""
    try:
        return os.stat(path).st_ctime_ns
    except FileNotFoundError:
        return None


class Control:
    """Raw lines to a mount."""

    def __init__(self, path, seconds=20):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        """The next line, b"" if the mount has hung up."""
        while b"\n" not in self.rest:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return b""
            if not data:
                return b""
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return line

    def ask(self, **request):
        self.send(json.dumps(request).encode() + b"\n")
        return json.loads(self.line())
