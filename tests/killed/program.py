"""A program that is killed, and what the mount's log says meanwhile.

    p = Program(lambda: os.open(path, os.O_RDWR), lambda fd: os.fsync(fd))      it has run the first
    p.go()                                                                      runs the second
    p.kill()
    p.wait_gone()
"""
import contextlib
import os
import re
import signal

from waiting import TookTooLong, wait_until

SECONDS = 60
LINE = re.compile(r"fuse: (\w+) of node (\d+)")
OTHER_SIDE = 1 << 63    # a file has two nodes where it is passed through


class Program:
    def __init__(self, prepare, act):
        ready, go = os.pipe(), os.pipe()
        self.pid, self.status, self._go = os.fork(), None, go[1]
        if self.pid == 0:
            with contextlib.suppress(Exception):
                thing = prepare()
                os.write(ready[1], b"r")
                os.read(go[0], 1)
                act(thing)
                os._exit(0)
            os._exit(1)
        os.close(ready[1])
        os.close(go[0])
        prepared = os.read(ready[0], 1)
        os.close(ready[0])
        if not prepared:
            self.kill()
            self.wait_gone()
            raise RuntimeError("a program could not prepare itself")

    def go(self):
        os.write(self._go, b"g")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def is_gone(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                os.close(self._go)
        return self.status is not None

    def wait_gone(self):
        """Its wait status."""
        wait_until(self.is_gone, SECONDS, f"program {self.pid} to be gone")
        return self.status

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if not self.is_gone():
            self.kill()
            self.wait_gone()


class Requests:
    """What the kernel asks a mount for (--log-level debug), from now on."""

    def __init__(self, mount):
        self.path = mount.log
        self.skip()

    def skip(self):
        self.at = os.path.getsize(self.path)

    def of(self, inode):
        with open(self.path, "rb") as f:
            f.seek(self.at)
            found = LINE.findall(f.read().decode("utf-8", "replace"))
        return [name.removesuffix("_64") for name, node in found if int(node) & ~OTHER_SIDE == inode]

    def has(self, inode, *names):
        """These requests have come, in this order, perhaps with others in between."""
        come = iter(self.of(inode))
        return all(any(name == wanted for name in come) for wanted in names)

    def came(self, inode, name):
        """False: not soon.  While the server is frozen a request may be held up by one before it that has to ask the server, if the mount
        has not been heard by it for long."""
        try:
            return wait_until(lambda: self.has(inode, name), 5, name)
        except TookTooLong:
            return False

    def wait_for(self, inode, *names):
        wait_until(lambda: self.has(inode, *names), SECONDS, f"{' '.join(names)} of inode {inode}")


@contextlib.contextmanager
def frozen(server):
    """Nobody is answered that needs the server."""
    server.freeze()
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
