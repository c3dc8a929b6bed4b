"""The two sides of a comparison: a plain folder, and an EpochFS server with a mount."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

WAIT_S = 30
VOLUME = "bench"


FOLDER = os.path.dirname(os.path.abspath(__file__))
LOAD_SOURCES = ("load.c", "content.c", "images.c", "large.c", "accelerator.c")
URING = "/sys/module/fuse/parameters/enable_uring"


def compile_here(binary, sources):
    """Whatever the build folder was configured with."""
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-pthread", "-o", binary, *(os.path.join(FOLDER, s) for s in sources)], check=True)
    return binary


def build_load(scratch):
    return compile_here(os.path.join(scratch, "load"), LOAD_SOURCES)


def wait_for(condition, what, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds} s for {what}")
        time.sleep(0.01)


def is_mounted(folder):
    """Also true of a mount whose process died, which os.path.ismount cannot see."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        return any(line.split()[4] == folder for line in f)


def cpu_seconds(process):
    """Of all its threads so far, also of those that have ended, to the nanosecond: its CPU clock (clock_getcpuclockid)."""
    return time.clock_gettime(~process.pid << 3 | 2)


def folder_bytes(folder):
    """On disk."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def drop_caches():
    subprocess.run(["sync"], check=True)
    if os.geteuid() == 0:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3")


class Plain:
    """The folder on the disk itself."""
    name = "ext4"

    def __init__(self, scratch):
        self.root = os.path.join(scratch, "plain")
        os.mkdir(self.root)

    def cold(self):
        drop_caches()

    warm_from_disk = cold

    def cpu(self):
        return 0.0

    def remount(self):
        """Forgets names and attributes, but not the disk's pages."""
        subprocess.run(["sync"], check=True)
        if os.geteuid() == 0:
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
                f.write("2")

    def settle(self):
        subprocess.run(["sync"], check=True)

    def company(self):
        pass

    def alone(self):
        pass


class Yardstick:
    """The empty FUSE file system of yardstick.c."""
    name = "empty FUSE"

    def __init__(self, scratch, shape, timeout_s):
        self.binary = os.path.join(scratch, "yardstick")
        self.root = os.path.join(scratch, "yardstick.mount")
        self.options = [word for key, value in {**shape, "timeout": timeout_s}.items() for word in ("--" + key, str(value))]
        self.process = None
        os.makedirs(self.root, exist_ok=True)
        if not os.path.exists(self.binary):
            compile_here(self.binary, ("yardstick.c",))

    def start(self):
        self.process = subprocess.Popen([self.binary, self.root, *self.options], stdin=subprocess.DEVNULL, start_new_session=True)

        def mounted():
            if self.process.poll() is not None:
                raise RuntimeError("the empty FUSE file system did not start")
            return is_mounted(self.root)
        wait_for(mounted, "the empty FUSE file system")

    def cpu(self):
        return cpu_seconds(self.process)

    def stop(self):
        if is_mounted(self.root):
            subprocess.run(["umount", "-l", self.root], check=False)
        if self.process:
            try:
                self.process.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


class EpochFS:
    """A server and a mount, both children of this process."""
    name = "epochfs"

    def __init__(self, binary, scratch):
        self.binary = binary
        self.data = os.path.join(scratch, "data")
        self.root = os.path.join(scratch, "mount")
        self.cache = os.path.join(scratch, "cache")
        self.writeback = os.path.join(scratch, "writeback")
        self.replica = os.path.join(scratch, "replica")
        self.address = "unix:" + os.path.join(self.data, "epochfs.sock")
        self.mount_address = self.address
        self.tcp_address = None                  # chosen at the first start
        self.mount_options = []
        self.uring_before = None
        self.known_options = None
        self.log = open(os.path.join(scratch, "log"), "w", encoding="utf-8")
        self.server = self.mount_process = self.second_process = None
        self.second = os.path.join(scratch, "mount.second")
        os.mkdir(self.root)

    def cli(self, *arguments):
        return subprocess.run([self.binary, *arguments, "--server", self.address], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT_S)

    def spawn(self, *arguments):
        return subprocess.Popen([self.binary, *arguments], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                start_new_session=True)

    def start_server(self):
        self.server = self.spawn("serve", "--data", self.data, "--listen", self.tcp_address or "127.0.0.1:0")

        def answers():
            if self.server.poll() is not None:
                raise RuntimeError("the server ended: " + self.last_words())
            return os.path.exists(self.address[5:]) and self.cli("volume", "list").returncode == 0
        wait_for(answers, "the server")
        with open(os.path.join(self.data, "address"), encoding="ascii") as f:
            self.tcp_address = next(word for line in f for word in line.split() if not word.startswith("unix:"))

    def start(self):
        self.start_server()
        made = self.cli("volume", "create", VOLUME)
        if made.returncode:
            raise RuntimeError("cannot create the volume: " + made.stdout)
        self.mount()

    def has(self, option):
        """Whether this build's mount knows it."""
        if self.known_options is None:
            text = subprocess.run([self.binary, "mount", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.known_options = set(re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", text, re.M))
        return option in self.known_options

    def allow_uring(self):
        """The kernel's switch, which mounts made from now on go by; put back by stop()."""
        with open(URING, encoding="ascii") as f:
            before = f.read().strip()
        if self.uring_before is None:
            self.uring_before = before
        if before != "Y":
            with open(URING, "w", encoding="ascii") as f:
                f.write("Y")

    def mount(self):
        if "--cache-dir" in self.mount_options:
            os.makedirs(self.cache, exist_ok=True)
        self.mount_process = self.spawn("mount", VOLUME, self.root, "--foreground", "--server", self.mount_address,
                                        *self.mount_options)

        def mounted():
            if self.mount_process.poll() is not None:
                raise RuntimeError("the mount ended: " + self.last_words())
            return is_mounted(self.root)
        wait_for(mounted, "the mount")

    def company(self):
        """A second mount, which does nothing."""
        os.makedirs(self.second, exist_ok=True)
        self.second_process = self.spawn("mount", VOLUME, self.second, "--foreground", "--server", self.address)
        wait_for(lambda: is_mounted(self.second), "the second mount")

    def alone(self):
        if self.second_process:
            self.second_process.send_signal(signal.SIGTERM)
            self.second_process.wait(timeout=120)
        self.second_process = None

    def unmount(self):
        self.alone()
        if self.mount_process and is_mounted(self.root):
            subprocess.run([self.binary, "umount", self.root], stdout=self.log, stderr=self.log, timeout=120, check=True)
        elif self.mount_process:
            self.mount_process.terminate()
        if self.mount_process:
            self.mount_process.wait(timeout=120)
        self.mount_process = None

    def stop_server(self):
        if self.server:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait(timeout=120)
        self.server = None

    def cold(self):
        """Nothing on the client, nothing in memory."""
        self.unmount()
        self.stop_server()
        shutil.rmtree(self.cache, ignore_errors=True)
        drop_caches()
        self.start_server()
        self.mount()

    def warm_from_disk(self):
        """Nothing in memory; what the client keeps on disk stays."""
        self.unmount()
        drop_caches()
        self.mount()

    def cpu(self):
        return cpu_seconds(self.mount_process) + cpu_seconds(self.server)

    def received(self):
        """Bytes that came over the mount's TCP connections so far."""
        text = subprocess.run(["ss", "-tinpOH"], stdout=subprocess.PIPE, text=True, check=True).stdout
        mine = [line for line in text.splitlines() if f"pid={self.mount_process.pid}," in line]
        return sum(int(n) for line in mine for n in re.findall(r"bytes_received:(\d+)", line))

    def remount(self):
        self.unmount()
        self.mount()

    def settle(self):
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        subprocess.run(["sync"], check=True)

    def stop(self):
        """Whatever state things are in."""
        for step in (self.unmount, self.stop_server):
            try:
                step()
            except (subprocess.SubprocessError, OSError) as e:
                print(f"run: {e}", file=sys.stderr)
        for process in (self.mount_process, self.server):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        if is_mounted(self.root):
            subprocess.run(["umount", "-l", self.root], check=False)
        if self.uring_before not in (None, "Y"):
            with open(URING, "w", encoding="ascii") as f:
                f.write(self.uring_before)
        self.log.close()

    def last_words(self):
        self.log.flush()
        with open(self.log.name, encoding="utf-8") as f:
            return "".join(f.readlines()[-5:])

    @staticmethod
    def memory(process, field):
        """Bytes; fields of /proc/PID/status."""
        with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
            return int(re.search(rf"^{field}:\s+(\d+) kB", f.read(), re.M).group(1)) << 10

    def metadata_bytes(self):
        """(size of the file, bytes in used pages or None)."""
        folder = os.path.join(self.data, "meta")
        size = os.stat(os.path.join(folder, "data.mdb")).st_size
        if not shutil.which("mdb_stat"):
            return size, None
        text = subprocess.run(["mdb_stat", "-ef", folder], stdout=subprocess.PIPE, text=True, check=True).stdout
        page, used, free = (int(re.search(rf"{what}: (\d+)", text).group(1))
                            for what in ("Page size", "Number of pages used", "Free pages"))
        return size, page * (used - free)
