"""A narrow network: a TCP relay that lets through so many bytes a second of what comes from the server."""
import socket
import threading
import time

CHUNK = 65536


class Narrow:
    """address: where mounts find it.  rate: bytes a second, of all connections together; None: as they come."""

    def __init__(self, server):
        host, port = server.rsplit(":", 1)
        self.server, self.rate = (host, int(port)), None
        self.lock, self.free_at = threading.Lock(), 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """What is connected stays until its mount ends."""
        self.rate = None
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        try:
            while True:
                client = self.listener.accept()[0]
                server = socket.create_connection(self.server)
                for pump in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self.pump, args=pump, daemon=True).start()
        except OSError:
            pass

    def pump(self, source, target, narrow):
        try:
            while data := source.recv(CHUNK):
                if narrow:
                    self.wait(len(data))
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def wait(self, size):
        rate = self.rate
        if not rate:
            return
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + size / rate
            until = self.free_at
        time.sleep(max(0, until - time.monotonic()))
