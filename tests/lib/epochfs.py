"""Starting, stopping, killing and mounting EpochFS for tests.

    with Site(build_dir) as site:
        server = site.server()
        server.cli("volume", "create", "training")
        mount = server.mount("training")
        ... mount.point ...

Everything lives below one temporary folder.  Every wait ends.  Only processes started here are
killed, and the keeper (keeper.py) clears up even if the run itself is killed."""
import contextlib
import errno
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from keeper import Keeper, mount_points, unmount
from mounting import for_every_mount, ring_switch_on, ring_wanted, tcp_address
from waiting import TookTooLong, Watchdog, wait_until

START_SECONDS = 60

# Where tests are run in the background of a script, or by nohup, these are ignored, and programs that are started inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

SANITIZER = re.compile(rb"ERROR: (?:Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error: |stack smashing detected")


class CommandFailed(Exception):
    def __init__(self, command, code, output):
        super().__init__(f"{' '.join(command)}: exit code {code}: {output.strip()}")
        self.code, self.output = code, output


class Site:
    """One temporary folder with servers and mounts in it."""

    def __init__(self, build, where=None, keep=False):
        self.binary = os.path.join(os.path.abspath(build), "epochfs")
        if not os.access(self.binary, os.X_OK):
            sys.exit(f"no {self.binary}: build it first")
        self.keep = keep
        self.keeper = Keeper()
        self.base = tempfile.mkdtemp(prefix="epochfs-test-", dir=where)
        os.chmod(self.base, 0o755)
        self.keeper.folder(self.base)
        self.servers, self.mounts, self.main_mount = [], [], None
        self.watchdog = Watchdog(self.rescue)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind not in (None, SystemExit):
            self.print_logs()
        self.close()

    def close(self):
        """Ends everything politely, then lets the keeper end what is left."""
        for mount in reversed(self.mounts):
            mount.discard()
        for server in self.servers:
            server.discard()
        if self.keep:
            self.keeper.keep_folder(self.base)
            print(f"kept: {self.base}")
        self.keeper.finish()

    def path(self, *names):
        return os.path.join(self.base, *names)

    def program_for_users(self):
        """The program where every user can get at it: the source may be in somebody's own folder."""
        program = self.path("epochfs")
        if not os.path.exists(program):
            shutil.copy(self.binary, program)
        return program

    def server(self, name="server", **options):
        server = Server(self, name, **options)
        self.servers.append(server)
        server.start()
        return server

    def rescue(self, what):
        """Called by the watchdog: ends the mounts' daemons, so that whoever waits for them gets an error."""
        for mount in self.mounts:
            if mount.process and mount.process.poll() is None:
                mount.print_stacks()
                mount.expected_death = True
                mount.process.kill()
        self.print_logs(lines=40)

    def revive(self):
        """Mounts again, and starts servers again, that a failed case or the watchdog left dead."""
        for server in self.servers:
            if server.wanted and server.process.poll() is not None:
                server.start()
        mount = self.main_mount
        if mount and (mount.process.poll() is not None or not mount.answers()):
            mount.discard()
            mount.start()

    def print_logs(self, lines=80):
        for path in sorted(glob.glob(self.path("*.log"))):
            with open(path, "rb") as f:
                text = f.read().decode("utf-8", "replace").splitlines()
            print(f"---- {os.path.basename(path)} (last {min(lines, len(text))} of {len(text)} lines)", file=sys.stderr)
            for line in text[-lines:]:
                print(f"     {line}", file=sys.stderr)
        sys.stderr.flush()

    def complaints(self):
        """What sanitizers wrote into the logs; a crash of ours counts too."""
        found = []
        for path in sorted(glob.glob(self.path("*.log"))):
            with open(path, "rb") as f:
                for line in f:
                    if SANITIZER.search(line):
                        found.append(f"{os.path.basename(path)}: {line.decode('utf-8', 'replace').strip()}")
        for thing in self.servers + self.mounts:
            found += thing.crashes
        return found

    def run(self, command, timeout=120, check=True, environment=None, data=None, input=None):
        """Runs a command of ours, bounded.  Returns (exit code, stdout, stderr)."""
        env = dict(os.environ, **(environment or {}))
        process = subprocess.Popen(command, stdin=subprocess.PIPE if input else subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=env, text=True)
        self.keeper.process(process.pid)
        try:
            out, err = process.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise TookTooLong(f"{' '.join(command)}: no end after {timeout} s: {out}{err}") from None
        if check and process.returncode:
            raise CommandFailed(command, process.returncode, out + err)
        return process.returncode, out, err


class Daemon:
    """A process of ours with a log."""

    def __init__(self, site, name):
        self.site, self.name = site, name
        self.process, self.log = None, site.path(f"{name}.log")
        self.crashes = []
        self.expected_death = False

    def spawn(self, command, environment=None):
        env = dict(os.environ, **(environment or {}))
        with open(self.log, "ab") as log:
            log.write(f"==== {' '.join(command)}\n".encode())
            log.flush()
            self.log_from = log.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            start_new_session=True)
        self.expected_death = False
        self.site.keeper.process(self.process.pid)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """kill -9, and gone when this returns."""
        self.expected_death = True
        if self.alive():
            self.process.kill()
        if self.process:
            self.process.wait()

    def freeze(self):
        """SIGSTOP; returns when its last thread has come out of the system call it was in."""
        tasks = f"/proc/{self.process.pid}/task"
        self.process.send_signal(signal.SIGSTOP)

        def state(thread):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(os.path.join(tasks, thread, "stat"), "rb") as f:
                    return f.read().rsplit(b")", 1)[1].split()[0]
            return None         # it has ended

        def stopped():
            return all(state(thread) == b"T" for thread in os.listdir(tasks))

        wait_until(stopped, 30, f"{self.name} to freeze")

    def wait_exit(self, seconds, what):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TookTooLong(f"waited {seconds} s for {self.name} to {what}") from None
        self.note_crash()
        return code

    def note_crash(self):
        if self.process and not self.expected_death and self.process.poll() is not None and self.process.returncode < 0 \
                and self.process.returncode not in (-signal.SIGTERM,):
            self.crashes.append(f"{self.name} died of {signal.Signals(-self.process.returncode).name}")
            self.expected_death = True

    def log_text(self, since_start=False):
        with open(self.log, "rb") as f:
            if since_start:
                f.seek(self.log_from)
            return f.read().decode("utf-8", "replace")

    def print_stacks(self):
        """Where every thread of the process is, for the report of a hang."""
        if shutil.which("gdb"):
            try:
                out = subprocess.run(["gdb", "-p", str(self.process.pid), "-batch", "-ex", "thread apply all bt 12"], timeout=30,
                                     stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout
                print(f"---- stacks of {self.name}\n{out}", file=sys.stderr, flush=True)
            except subprocess.TimeoutExpired:
                pass


class Server(Daemon):
    def __init__(self, site, name="server", data=None, options=(), environment=None):
        super().__init__(site, name)
        self.data = data or site.path(name)
        self.options = list(options)
        self.environment = environment
        self.socket = os.path.join(self.data, "epochfs.sock")
        self.address = f"unix:{self.socket}"
        self.tcp = None if "--listen" in self.options else tcp_address()
        self.wanted = False

    def start(self, ready=True, seconds=START_SECONDS):
        self.wanted = True
        os.makedirs(self.data, exist_ok=True)
        listen = ["--listen", self.tcp] if self.tcp else []
        self.spawn([self.site.binary, "serve", "--data", self.data, *listen, *self.options], self.environment)
        if ready:
            self.wait_ready(seconds)

    def answers(self):
        if not self.alive():
            self.note_crash()
            raise CommandFailed(["epochfs", "serve"], self.process.returncode, self.log_text(since_start=True))
        s = socket.socket(socket.AF_UNIX)
        try:
            s.settimeout(5)
            s.connect(self.socket)
            return True
        except OSError:
            return False
        finally:
            s.close()

    def wait_ready(self, seconds=START_SECONDS):
        wait_until(self.answers, seconds, f"{self.name} to listen on {self.socket}")

    def stop(self, seconds=START_SECONDS):
        """SIGTERM: the polite end.  Returns the exit code."""
        self.wanted = False
        self.process.terminate()
        return self.wait_exit(seconds, "end after SIGTERM")

    def restart(self):
        self.stop()
        self.start()

    def discard(self):
        self.wanted = False
        self.note_crash()
        if self.alive():
            try:
                self.stop(20)
            except TookTooLong as error:
                self.crashes.append(str(error))
                self.kill()

    def cli(self, *words, check=True, timeout=120, input=None):
        """epochfs VERB ... --server this one.  Returns (exit code, stdout, stderr).  A mount logs in the site's folder unless told."""
        if words[:1] == ("mount",) and "--log-file" not in words:
            words += ("--log-file", self.site.path("background.log"))
        return self.site.run([self.site.binary, *words], timeout, check, {"EPOCHFS_SERVER": self.address}, input=input)

    def json(self, *words, timeout=120):
        return json.loads(self.cli(*words, "--json", timeout=timeout)[1])

    def volume(self, name, *options):
        self.cli("volume", "create", name, *options)
        return name

    def mount(self, volume, name=None, point=None, options=(), start=True, address=None):
        """address: how the mount reaches the server, if not as everybody does."""
        mount = Mount(self, volume, name or f"mount-{volume}", point, options, address)
        self.site.mounts.append(mount)
        if start:
            mount.start()
        return mount

    def fsck(self, *options, timeout=300):
        """(clean?, what it said)."""
        code, out, err = self.cli("fsck", *options, check=False, timeout=timeout)
        return code == 0, out + err


class Mount(Daemon):
    def __init__(self, server, volume, name, point, options, address=None):
        super().__init__(server.site, name)
        self.server, self.volume, self.options, self.address = server, volume, list(options), address
        self.point = point or server.site.path(f"mnt-{name}")
        os.makedirs(self.point, exist_ok=True)

    def start(self, ready=True, seconds=START_SECONDS):
        if ring_wanted(self.options):       # each time, as another run that ends now puts it back
            ring_switch_on(self.site.keeper)
        self.spawn([self.site.binary, "mount", self.volume, self.point, "--server", self.address or self.server.tcp or self.server.address,
                    "--foreground", *for_every_mount(self.site.path("cache"), self.site.path(f"own-{os.path.basename(self.point)}"), self.options),
                    *self.options])
        if ready:
            self.wait_ready(seconds)

    def mounted(self):
        return self.point in mount_points(self.point)

    def answers(self, seconds=10):
        """Whether somebody serves the mount; asked by a process of its own, because a dead one may never answer."""
        try:
            return subprocess.run(["stat", "-f", self.point], timeout=seconds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def ready(self):
        if not self.alive():
            self.note_crash()
            raise CommandFailed(["epochfs", "mount", self.volume], self.process.returncode, self.log_text(since_start=True))
        # In this order: once a dead mount is gone, what is mounted is ours.  The first answer may have been that of the folder below;
        # the last one is ours, and comes once the mount serves.
        return self.is_ours() and self.mounted() and self.is_ours()

    def is_ours(self):
        """The dead mount of a killed daemon may still be there: ours is the one that does not say ENOTCONN."""
        try:
            os.statvfs(self.point)
            return True
        except OSError:
            return False

    def is_dead(self):
        try:
            os.listdir(self.point)
            return False
        except OSError as error:
            return error.errno == errno.ENOTCONN

    def wait_dead(self, seconds=10):
        """After its process was killed: by io_uring the kernel takes a moment to know."""
        wait_until(self.is_dead, seconds, f"{self.point} to be a dead mount")

    def wait_ready(self, seconds=START_SECONDS):
        wait_until(self.ready, seconds, f"{self.volume} to be mounted on {self.point}")

    def umount(self, seconds=START_SECONDS):
        """umount(8), and the daemon has stored everything and is gone.  Returns its exit code."""
        self.site.run(["umount", self.point], seconds)
        return self.wait_exit(seconds, "end after umount")

    def remount(self):
        """A new mount with cold caches."""
        self.umount()
        drop_caches()
        self.start()

    def discard(self):
        self.note_crash()
        if self.mounted():
            unmount(self.point)
        if self.process:
            try:
                self.wait_exit(20, "end after umount")
            except TookTooLong as error:
                self.crashes.append(str(error))
                self.print_stacks()
                self.kill()


# First of all in a mount namespace of one's own (unshare --mount): it begins with a copy of every mount, and a volume
# that is unmounted elsewhere would stay in use by the copy.
DROP_COPIES = "umount --lazy --all --types fuse.epochfs"


def drop_caches():
    """The kernel forgets clean pages, names and inodes."""
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3\n")
    except OSError:
        pass
