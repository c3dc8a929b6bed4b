"""Small file systems of their own: to be filled, and to lose power."""
import fcntl
import os
import struct
import subprocess

from waiting import wait_until

MiB = 1 << 20
SHUTDOWN = 0x8004587D       # FS_IOC_SHUTDOWN
NO_LOG_FLUSH = 2            # what is in the journal's memory is lost, too
POWER_ON_SECONDS = 60


def run(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=120)


class Disk:
    """ext4 in a file.  The keeper of the site unmounts it in the end."""

    def __init__(self, point, image, size_mib):
        self.point, self.image = point, image
        os.mkdir(point)
        with open(image, "wb") as f:
            f.truncate(size_mib * MiB)
        run("mkfs.ext4", "-q", "-m", "0", image)
        run("mount", "-o", "loop", image, point)

    def power_on(self):
        """Somebody may hold on to the dead file system for a while: a mount that has objects open, or another program
        that was given mounts of its own while it was there.  Mounting gives the dead one back as long as that lasts."""
        wait_until(self.mounted_anew, POWER_ON_SECONDS, "the disk to be let go")

    def mounted_anew(self):
        if os.path.ismount(self.point) and not self.unmounted():
            return False
        run("mount", "-o", "loop", self.image, self.point)
        try:
            os.close(os.open(os.path.join(self.point, ".alive"), os.O_CREAT | os.O_WRONLY))
        except OSError:
            return False
        return True

    def unmounted(self):
        return subprocess.run(["umount", self.point], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120).returncode == 0

    def cut_power(self):
        """Everything that was not synced is gone, and so is the file system until power_on."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)
