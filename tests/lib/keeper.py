"""A process that cleans up after a test run, whatever happened to the run.

The run tells it, over a pipe, which processes, mount points and folders it made.
When the run says it is done, or is gone (killed, crashed, interrupted), the keeper
kills those processes (only those: a pid whose start time differs is somebody
else's), unmounts, removes the folders, and puts settings of the kernel back.  It lives in a session of its own, so
that Ctrl-C at the terminal does not reach it.
"""
import os
import select
import shutil
import signal
import subprocess
import time


def start_time(pid):
    """The start time of a process in clock ticks, which with the pid names it for good; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[19].decode()
    except OSError:
        return None


def alive(pid, started):
    if start_time(pid) != started:
        return False
    with open(f"/proc/{pid}/stat", "rb") as f:
        return f.read().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")


def mount_points(below="/"):
    """Mount points at or below a folder, the innermost first."""
    prefix = below.rstrip("/")
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            point = line.split()[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "surrogateescape")
            if point == prefix or point.startswith(prefix + "/"):
                found.append(point)
    return found[::-1]


def unmount(point, seconds=20):
    """Unmounts, lazily if it must be.  Never raises."""
    for command in (["umount", point], ["umount", "-l", point]):
        try:
            if subprocess.run(command, timeout=seconds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return True
        except subprocess.TimeoutExpired:
            pass
    return False


class Keeper:
    def __init__(self):
        reader, self.writer = os.pipe()
        runner = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.close(self.writer)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                _keep(reader, os.pidfd_open(runner))
            finally:
                os._exit(0)
        os.close(reader)

    def _tell(self, *words):
        os.write(self.writer, ("\0".join(words) + "\n").encode("utf-8", "surrogateescape"))

    def process(self, pid):
        self._tell("process", str(pid), start_time(pid) or "0")

    def folder(self, path):
        """Everything mounted at or below it is unmounted and it is removed, in the end."""
        self._tell("folder", path)

    def restore(self, path, text):
        """In the end this is written to the file."""
        self._tell("restore", path, text)

    def keep_folder(self, path):
        """Unmount below it, but leave the folder to be looked at."""
        self._tell("keep", path)

    def finish(self):
        """Cleans up now and waits for it."""
        if self.pid:
            self._tell("done")
            os.close(self.writer)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _keep(reader, runner):
    processes, folders, kept, settings, pending, done = [], [], [], [], b"", False
    while not done:
        ready = {fd for fd, _ in _poll(reader, runner)}
        if reader in ready:
            data = os.read(reader, 65536)
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                word, *rest = line.decode("utf-8", "surrogateescape").split("\0")
                if word == "process":
                    processes.append((int(rest[0]), rest[1]))
                    processes = [(p, s) for p, s in processes if start_time(p) == s]
                elif word == "folder":
                    folders.append(rest[0])
                elif word == "keep":
                    kept.append(rest[0])
                elif word == "restore":
                    settings.append(rest)
                elif word == "done":
                    done = True
            if data:
                continue
            done = True
        elif runner in ready:
            done = True
    _clean(processes, folders, kept)
    for path, text in settings:
        with open(path, "w", encoding="ascii") as f:
            f.write(text)


def _poll(*descriptors):
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return poll.poll()


def _clean(processes, folders, kept):
    for pid, started in processes:
        if alive(pid, started):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    end = time.monotonic() + 20
    while any(alive(p, s) for p, s in processes) and time.monotonic() < end:
        time.sleep(0.02)
        for folder in folders:     # a process may be stuck in a mount: let it go
            for point in mount_points(folder):
                unmount(point)
    for folder in folders:
        for point in mount_points(folder):
            unmount(point)
        if folder not in kept and not mount_points(folder):
            shutil.rmtree(folder, ignore_errors=True)
