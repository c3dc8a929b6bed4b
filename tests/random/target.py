"""What is played on: a mount of EpochFS with all that can happen to it, or a folder of another file system."""
import os
import re
import shutil
import socket
import tempfile

from epochfs import drop_caches


def free_port():
    """One that nobody listens on, for a server that must come back on the same."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Folder:
    """Any file system, to check the model itself."""

    upsets = ["drop_caches"]
    epochfs = False
    xattr_max = 100
    atime = False

    def __init__(self, where, mounts=1):
        self.root = tempfile.mkdtemp(prefix="random-", dir=where)
        os.chmod(self.root, 0o755)
        self.roots = [self.root + "/." * k for k in range(mounts)]      # other names of the one folder

    def drop_caches(self):
        os.sync()
        drop_caches()

    def problems(self):
        return []

    def passed_through(self):
        return None

    def close(self):
        shutil.rmtree(self.roots[0], ignore_errors=True)


class Mounted:
    """A volume of its own on a server of its own, mounted once or several times.

    roots: the folder that is played in, as each mount sees it; root is the one of them to use now."""

    upsets = ["drop_caches"] * 5 + ["remount"] * 2 + ["restart_server", "kill_server", "gc", "fsck"]
    epochfs = True
    xattr_max = 60000
    atime = True

    def __init__(self, site, name, volume_options, server_options=(), mount_options=(), mounts=1):
        self.site = site
        options = [f"127.0.0.1:{free_port()}" if word == "tcp" else word for word in server_options]
        self.server = site.server(f"server-{name}", options=options)
        if "--listen" in options:
            self.server.address = options[options.index("--listen") + 1]
        self.server.volume("random", *volume_options)
        self.mounts = []
        for k in range(mounts):
            self.mounts.append(self.server.mount("random", name=f"mount-{name}" + (f"-{'abcdefgh'[k]}" if mounts > 1 else ""),
                                                 options=mount_options))
        self.roots = [os.path.join(mount.point, "play") for mount in self.mounts]
        self.root = self.roots[0]
        os.mkdir(self.root)
        os.chmod(self.root, 0o755)

    drop_caches = staticmethod(drop_caches)

    def remount(self):
        """The players close their files first.  What was written must come back from the store."""
        self.server.wait_ready()
        for mount in self.mounts:
            mount.remount()

    def restart_server(self):
        """SIGTERM; the mount waits for the new one by itself, so nobody else does."""
        self.server.wait_ready()
        self.server.stop()
        self.server.start(ready=False)

    def kill_server(self):
        self.server.wait_ready()
        self.server.kill()
        self.server.start(ready=False)

    def gc(self):
        self.server.wait_ready()
        self.server.cli("gc", "random")

    def fsck(self):
        self.server.wait_ready()
        clean, text = self.server.fsck()
        if not clean:
            raise AssertionError(f"fsck while mounted is not clean: {text.strip()}")

    def problems(self):
        """Ends everything; what was found, as lines."""
        found = []
        self.server.wait_ready()
        for mount in self.mounts:
            code = mount.umount()
            if code:
                found.append(f"{mount.name} ended with {code}")
        clean, text = self.server.fsck()
        if not clean:
            found.append(f"fsck is not clean: {text.strip()}")
        damaged = sum(map(int, re.findall(r"(\d+) found damaged", self._log())))
        if damaged:
            found.append(f"the cache has found {damaged} chunks damaged, and nobody has damaged any")
        code = self.server.stop()
        if code:
            found.append(f"the server ended with {code}")
        return found

    def _log(self):
        return "".join(mount.log_text() for mount in self.mounts)

    def passed_through(self):
        """How often the kernel was given a file to read by itself, as the mounts told at their ends; None if it never is."""
        found = re.findall(r"(\d+) times a file was opened and passed through", self._log())
        return sum(map(int, found)) if found else None

    def close(self):
        for mount in self.mounts:
            mount.discard()
        self.server.discard()
