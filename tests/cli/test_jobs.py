"""epochfs fsck, gc, scrub and status."""
import json
import os
import re
import signal
import subprocess

import pytest

from control import tcp_server
from waiting import wait_until


@pytest.fixture(scope="module")
def damaged(site):
    """A server of its own, on which one object of a file has lost a byte."""
    server = site.server("damaged", options=["--grace", "0"])
    server.volume("v")
    mount = server.mount("v", name="mount-damaged")
    for name in ("good", "bad"):
        with open(f"{mount.point}/{name}", "wb") as f:
            f.write(os.urandom(5 << 20))
            os.fsync(f.fileno())
    objects = [os.path.join(folder, name) for folder, _, names in os.walk(f"{server.data}/objects") for name in names
               if re.fullmatch("[0-9a-f]{16}", name)]
    largest = sorted(objects, key=lambda path: (os.path.getsize(path), path))
    with open(largest[-1], "r+b") as f:
        f.seek(1 << 20)
        byte = f.read(1)
        f.seek(1 << 20)
        f.write(bytes([byte[0] ^ 1]))
    return server, mount, os.path.basename(largest[-1])


@pytest.mark.parametrize("kind", ["fsck", "gc", "scrub"])
def test_a_healthy_server_is_clean(good, mount, kind):
    with open(f"{mount.point}/{kind}", "wb") as f:
        f.write(os.urandom(300000))
        os.fsync(f.fileno())
    result = json.loads(good(kind, "--json"))
    assert (result["kind"], result["result"], result["findings"], result["error"]) == (kind, "clean", [], None)
    assert result["counts"] and all(re.fullmatch("[a-z_]+", name) for name in result["counts"])
    assert json.loads(good(kind, "files", "--json"))["result"] == "clean"
    assert "inding" not in good(kind)


def test_a_quick_fsck_reads_no_contents_and_a_repair_finds_nothing_to_do(good, mount):
    assert "Clean" in good("fsck", "--quick")
    assert "Clean" in good("fsck", "--repair")


def test_a_volume_that_does_not_exist_is_named(refused, server):
    for kind in ("fsck", "gc", "scrub"):
        refused(1, [kind, "missing"], "missing")


@pytest.mark.parametrize("kind", ["scrub", "fsck"])
def test_damage_is_found_and_the_file_named(damaged, kind):
    server, _, key = damaged
    code, out, err = server.cli(kind, "--json", check=False)
    result = json.loads(out)
    assert (code, result["result"]) == (1, "findings")
    text = "\n".join(result["findings"])
    assert "good" in text or "bad" in text
    assert key.lstrip("0") in text or str(int(key, 16)) in text
    code, out, err = server.cli(kind, check=False)
    assert code == 1 and re.search(r"^\d+ findings?\.", out, re.M), out


def test_damage_stays_where_it_is(damaged):
    _, mount, _ = damaged
    broken = 0
    for name in ("good", "bad"):
        try:
            with open(f"{mount.point}/{name}", "rb") as f:
                f.read()
        except OSError:
            broken += 1
    assert broken <= 1


def test_status_shows_the_server_and_its_mounts(good, mount, server):
    status = json.loads(good("status", "--json"))
    assert {"version", "instance", "started", "store", "store_total_bytes", "store_free_bytes", "waiting_objects",
            "waiting_bytes", "waiting_until", "grace_s", "objects", "metadata_bytes", "batch",
            "sessions", "losses", "writebacks"} == set(status)
    session, = [s for s in status["sessions"] if s["mount_point"] == mount.point]
    assert (session["volume"], session["pid"], session["read_only"]) == ("files", mount.process.pid, False)
    out = good("status")
    assert re.search(rf"^Server +{re.escape(server.address)}, version ", out, re.M)
    assert re.search(rf"^files .*{re.escape(mount.point)} ", out, re.M)


def test_after_a_restart_nobody_is_said_to_be_heard_who_was_not(site):
    server = tcp_server(site, "restarted")
    server.volume("kept")
    mount = server.mount("kept")
    assert server.json("status")["sessions"][0]["last_contact"]
    mount.freeze()
    try:
        server.restart()
        session, = server.json("status")["sessions"]
        out = server.cli("status")[1]
        _, _, refusal = server.cli("volume", "delete", "kept", "--yes", check=False)
    finally:
        mount.process.send_signal(signal.SIGCONT)
    assert session["last_contact"] is None
    assert re.search(rf"^kept .*{re.escape(mount.point)} .* not since the restart$", out, re.M), out
    assert "it was not heard of since the restart of the server, " in refusal
    wait_until(lambda: server.json("status")["sessions"][0]["last_contact"], 60, "the mount to come back")
    assert re.search("^kept .* now$", server.cli("status")[1], re.M)
    assert mount.umount() == 0


def test_open_files_are_counted(good, mount):
    def count():
        return next(s["open_files"] for s in json.loads(good("status", "--json"))["sessions"] if s["mount_point"] == mount.point)

    wait_until(lambda: count() == 0, 30, "files to be closed")
    with open(f"{mount.point}/held", "wb"):
        wait_until(lambda: count() == 1, 30, "the server to be told of the file")
    wait_until(lambda: count() == 0, 30, "the file to be closed")


def test_a_job_goes_on_if_signals_are_ignored(site, server, mount):
    with open(f"{mount.point}/some", "wb") as f:
        f.write(os.urandom(64 << 20))
    process = subprocess.Popen([site.binary, "scrub", "--server", server.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    site.keeper.process(process.pid)
    wait_until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT), 60, "it to end")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), (out, err)
    os.unlink(f"{mount.point}/some")


def test_an_interrupted_job_is_cancelled(site, server, mount):
    with open(f"{mount.point}/much", "wb") as f:
        for _ in range(64):
            f.write(os.urandom(4 << 20))
    process = subprocess.Popen([site.binary, "scrub", "--server", server.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    site.keeper.process(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    # It may have been done, or not have begun to listen, before the signal came.
    assert process.returncode in (0, 1, -signal.SIGINT), (out, err)
    if process.returncode == 1:
        assert "interrupted" in err
    os.unlink(f"{mount.point}/much")
