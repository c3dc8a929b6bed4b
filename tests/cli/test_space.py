"""What is said of space that is not back yet, and what df shows."""
import contextlib
import os
import re
import socket
import subprocess
import threading

import pytest

from waiting import wait_until

SIZE = 3 << 20
DATE = r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d \S+"


@pytest.fixture(scope="module")
def patient(site):
    """A server that keeps what was freed for an hour."""
    server = site.server("patient", options=["--grace", "1h"])
    server.volume("v")
    yield server
    server.stop()


def write(path, size=SIZE):
    with open(path, "wb") as f:
        f.write(os.urandom(size))
        f.flush()
        os.fsync(f.fileno())


def test_what_was_freed_and_is_not_back_yet_is_told(patient):
    mount = patient.mount("v", "patient-v")
    write(f"{mount.point}/f")
    os.unlink(f"{mount.point}/f")
    assert patient.json("status")["waiting_bytes"] == 0
    out = patient.cli("trash", "empty", "v", "--yes")[1]
    assert re.fullmatch(rf"Freeing 3 MiB in 1 file\.\nThe space is back at {DATE} at the earliest: what was freed stays in the store for 1h "
                        r"\(epochfs serve --grace; an hour while there are replicas\)\.  The space of small files is back when epochfs gc has "
                        r"rewritten their packs, that of open files when they are closed\.\n", out), out
    wait_until(lambda: patient.json("status")["waiting_bytes"] >= SIZE, 30, "the file to be freed")
    status = patient.json("status")
    assert (status["waiting_objects"], status["grace_s"]) == (1, 3600) and status["waiting_until"] > status["started"]
    waits = rf"3 MiB in 1 object, deleted by {DATE} at the latest"
    assert re.search(rf"^Freed +{waits}$", patient.cli("status")[1], re.M)
    assert re.search(rf"^Not back yet: {waits}; mounts may still be reading it", patient.cli("gc")[1], re.M)
    counts = patient.json("gc")["counts"]
    assert (counts["waiting_objects"], counts["waiting_bytes"]) == (1, status["waiting_bytes"])
    write(f"{mount.point}/f")
    os.unlink(f"{mount.point}/f")
    emptied = patient.json("trash", "empty", "v", "--yes")
    assert emptied == {"files": 1, "bytes": SIZE, "back": emptied["back"]} and emptied["back"] > status["waiting_until"]
    mount.umount()


def test_where_nothing_waits_nothing_is_said(server, good):
    server.volume("quick", "--retention", "0s")
    assert good("trash", "empty", "quick", "--yes") == "Freeing 0 bytes in 0 files.\n"
    wait_until(lambda: server.json("status")["waiting_objects"] == 0, 30, "what other cases deleted to be gone")
    assert "Freed" not in good("status")


def test_gc_has_done_its_work_also_if_the_server_is_gone_when_it_is_done(site, patient):
    """It asks for what waits on another connection, which there is none for here."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as server:
        process = subprocess.Popen([site.binary, "gc", "--server", f"127.0.0.1:{listener.getsockname()[1]}"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        with listener.accept()[0] as client:
            listener.close()
            server.connect(patient.socket)
            pumps = [threading.Thread(target=pump, args=pair) for pair in ((client, server), (server, client))]
            for one in pumps:
                one.start()
            out, err = process.communicate(timeout=60)
            for one in pumps:
                one.join()
    assert process.returncode == 0 and out.startswith("Done.\n") and err == "", (out, err)


def pump(source, to):
    """Until it ends, which the other one is told."""
    while data := source.recv(65536):
        to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def test_df_shows_the_size_of_the_disk_whatever_is_written(site, patient):
    patient.volume("df")
    mount = patient.mount("df", "patient-df")
    disk = os.statvfs(patient.data)

    def figures():
        s = os.statvfs(mount.point)
        return s.f_blocks * s.f_frsize, (s.f_blocks - s.f_bfree) * s.f_frsize
    before, used = figures()
    assert (before, used) == (disk.f_blocks * disk.f_frsize, 0)
    write(f"{mount.point}/f")
    assert figures() == (before, SIZE)
    mount.umount()


def size_bytes(text):
    number, unit = text.split()
    return float(number) * 1024 ** ["byte", "KiB", "MiB", "GiB"].index(unit.rstrip("s"))


def test_the_log_says_why_a_full_store_has_no_room(site):
    point = site.path("small-disk")
    os.mkdir(point)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", point], check=True)
    server = site.server("full", data=f"{point}/data", options=["--grace", "1h"])
    server.volume("v")
    mount = server.mount("v", "full-v")
    with pytest.raises(OSError, match="No space left"):
        for i in range(160):
            write(f"{mount.point}/{i}", 1 << 20)
    told = re.search(r"warn the store is full: a mount asked for ([^,]+), and ([^,]+) of [^,]+ are free; nothing that was deleted is still in it",
                     server.log_text())
    assert told, server.log_text()
    # What the server keeps for itself is no room for a mount.
    assert size_bytes(told[2]) <= size_bytes(told[1]), told[0]
    mount.discard()
    server.stop()
    subprocess.run(["umount", point], check=True)
