"""make install, make uninstall, and the line of fstab that uses what was installed."""
import os
import subprocess

import pytest

from epochfs import DROP_COPIES

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

# A machine where systemd seems to run: its systemctl notes what it is told, and says that the server and a timer are
# active.  Links of enabled units are in a /etc/systemd/system of its own.
WITH_SYSTEMD = f"""
set -e
{DROP_COPIES}
folder=$1
shift
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$folder/bin" "$folder/etc/system/multi-user.target.wants"
cat >"$folder/bin/systemctl" <<'END'
#!/bin/sh
echo "$*" >>"$NOTES"
[ "$1" != is-active ] || case $2 in epochfs-server.service | epochfs-gc.timer) echo active ;; *) echo inactive; exit 3 ;; esac
END
chmod 755 "$folder/bin/systemctl"
ln -sfn /somewhere/epochfs-server.service "$folder/etc/system/multi-user.target.wants/epochfs-server.service"
mkdir -p /etc/systemd
mount --bind "$folder/etc" /etc/systemd
export NOTES=$folder/notes PATH=$folder/bin:$PATH
exec "$@"
"""

# A machine with nothing but the line of fstab from the documentation, the helper where mount(8) looks for it, and a
# server at the default address.
WITH_FSTAB = f"""
set -e
{DROP_COPIES}
mount -t tmpfs tmpfs /mnt
mkdir /mnt/training
mount -t tmpfs tmpfs /usr/sbin
ln -s "$1" /usr/sbin/mount.fuse.epochfs
mount -t tmpfs tmpfs /var/lib
ln -s "$2" /var/lib/epochfs
mount -t tmpfs tmpfs /var/log
mount -a -T "$3"
mount -a -T "$3"
grep -c ' /mnt/training fuse.epochfs rw' /proc/self/mounts
echo hello >/mnt/training/file
"$1" umount /mnt/training
mount -T "$3" /mnt/training
cat /mnt/training/file
"$1" umount /mnt/training
"""


def remove(destdir, prefix="/usr/local", sbindir="/usr/sbin", before=(), code=0):
    done = subprocess.run([*before, f"{ROOT}/scripts/install", "--remove", destdir, prefix, sbindir], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture
def installed(site, request):
    """Installed below a folder as if for this machine, not for an image: (PREFIX, SBINDIR)."""
    folder = site.path(request.node.name)
    subprocess.run([f"{ROOT}/scripts/install", os.environ["EPOCHFS_BUILD"], "", f"{folder}/usr", f"{folder}/sbin", f"{folder}/etc"],
                   check=True, stdout=subprocess.DEVNULL)
    return f"{folder}/usr", f"{folder}/sbin"


def test_make_install_puts_everything_in_its_place(site):
    target = site.path("installed")
    build = os.environ["EPOCHFS_BUILD"]
    subprocess.run([f"{ROOT}/scripts/install", build, target, "/usr/local", "/usr/sbin", "/etc"], check=True, stdout=subprocess.DEVNULL)
    assert os.access(f"{target}/usr/local/bin/epochfs", os.X_OK)
    assert os.readlink(f"{target}/usr/sbin/mount.fuse.epochfs") == "/usr/local/bin/epochfs"
    with open(f"{target}/usr/local/lib/systemd/system/epochfs-server.service", encoding="ascii") as f:
        unit = f.read()
    assert "ExecStart=/usr/local/bin/epochfs serve --data /var/lib/epochfs --config /etc/epochfs/server.conf" in unit
    assert "Type=notify" in unit
    assert os.path.exists(f"{target}/etc/epochfs/server.conf")
    wants = f"{target}/etc/systemd/system/timers.target.wants"
    os.makedirs(wants)
    os.symlink("/usr/local/lib/systemd/system/epochfs-gc.timer", f"{wants}/epochfs-gc.timer")
    assert "Disabled epochfs-gc.timer." in remove(target)
    left = [os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names]
    assert left == [f"{target}/etc/epochfs/server.conf"]


def test_uninstall_stops_and_disables_the_units(site, installed):
    folder = site.path("systemd")
    os.mkdir(folder)
    out = remove("", *installed, ["unshare", "--mount", "sh", "-c", WITH_SYSTEMD, "sh", folder])
    assert "Stopped epochfs-server.service." in out and "Disabled epochfs-server.service." in out
    assert "Stopped epochfs-gc.timer." in out and "epochfs-scrub" not in out
    with open(f"{folder}/notes", encoding="ascii") as f:
        told = [line for line in f.read().splitlines() if not line.startswith("is-active")]
    assert told[:3] == ["stop epochfs-gc.timer", "stop epochfs-server.service", "daemon-reload"]
    assert os.listdir(f"{folder}/etc/system/multi-user.target.wants") == []
    assert not os.path.exists(f"{installed[0]}/bin/epochfs")


def test_uninstall_refuses_while_a_volume_is_mounted(site, server, installed):
    server.volume("busy")
    point = site.path("mnt-busy")
    os.mkdir(point)
    helper = f"{installed[1]}/mount.fuse.epochfs"
    site.run([helper, "busy", point, "-o", f"server={server.address},log-file={site.path('busy.log')}"])
    try:
        assert point in remove("", *installed, code=1)
        assert os.path.exists(helper)
    finally:
        site.run([f"{installed[0]}/bin/epochfs", "umount", point])
    remove("", *installed)
    assert not os.path.lexists(helper)


def test_uninstall_tells_of_a_server_that_runs_on(site, installed):
    process = subprocess.Popen([f"{installed[0]}/bin/epochfs", "serve", "--data", site.path("by-hand")], stderr=subprocess.DEVNULL)
    try:
        site.keeper.process(process.pid)
        out = remove("", *installed)
        assert "still run" in out and f"{process.pid} {installed[0]}/bin/epochfs serve" in out
    finally:
        process.terminate()
        process.wait(60)


def fstab_lines(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.split()[1:3] == ["/mnt/training", "fuse.epochfs"]]


def test_the_documented_line_of_fstab_mounts(site, good):
    with open(f"{ROOT}/docs/operations.md", encoding="utf-8") as f:
        line, = fstab_lines(f.read())
    assert fstab_lines(good("mount", "--help")) == [line]
    server = site.server("fstab")
    server.volume("training")
    fstab = site.path("fstab.txt")
    with open(fstab, "w", encoding="ascii") as f:
        f.write(line + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "EPOCHFS_SERVER"}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", WITH_FSTAB, "sh", site.binary, server.data, fstab], env=environment,
                          timeout=120, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\nhello\n", "")
    assert server.stop() == 0
