"""epochfs writeback, and the options of mounts that belong to it."""
import errno
import json
import os
import pwd
import shutil
import signal
import time

import pytest

from control import tcp_server
from waiting import wait_until


@pytest.fixture
def writer(server, mount, site, request):
    """A mount that uploads nothing by itself for an hour."""
    made = server.mount("files", f"writeback-{request.node.name[:30]}",
                        options=[f"--writeback={site.path(request.node.name)}", "--upload-limit=1KiB"])
    yield made
    if made.alive():
        made.umount()


def synced(path, size):
    with open(path, "wb", buffering=0) as f:
        f.write(os.urandom(size))
        os.fsync(f.fileno())


def test_what_is_not_uploaded_is_listed(good, writer, site, request):
    directory = site.path(request.node.name)
    assert json.loads(good("writeback", "list", directory, "--json")) == []
    assert good("writeback", "list", directory) == "Nothing is left to upload.\n"
    synced(f"{writer.point}/not-uploaded", 1 << 20)
    entry, = json.loads(good("writeback", "list", directory, "--json"))
    assert (entry["volume"], entry["path"], entry["size_bytes"], entry["mount_point"]) == ("files", "/not-uploaded", 1 << 20, writer.point)
    assert "/not-uploaded" in good("writeback", "list", entry["id"])
    assert f"{writer.point} has data of 1 file of files that is not uploaded" in good("status")
    writer.umount()
    assert good("writeback", "list", directory) == "Nothing is left to upload.\n"


def left(good, writer):
    figures = json.loads(good("status", writer.point, "--json"))["figures"]
    return figures["writeback_files"], figures["writeback_synced_files"], figures["writeback_bytes"]


def shown(text, label):
    """The value of a figure in what people see."""
    line, = (line for line in text.splitlines() if line.strip().startswith(label))
    return line.strip().removeprefix(label).strip()


def test_the_mount_tells_what_is_not_uploaded_until_it_is(good, writer, mount):
    assert left(good, writer) == (0, 0, 0)
    assert "NOT UPLOADED" not in good("status", writer.point)
    sizes = [200_000 + i for i in range(10)]
    for size in sizes:
        synced(f"{writer.point}/later-{size}", size)
    with open(f"{writer.point}/unsynced", "wb", buffering=0) as f:
        f.write(os.urandom(300_000))
    assert left(good, writer) == (11, 10, sum(sizes) + 300_000)

    text = good("status", writer.point)
    assert [shown(text, label) for label in ("Files not uploaded yet", "synced, on the local disk only", "bytes of them")] == ["11", "10", "2.2 MiB"]
    files = json.loads(good("status", writer.point, "--json"))["not_uploaded"]
    names = {os.stat(f"{writer.point}/{name}").st_ino: name for name in os.listdir(writer.point)}
    assert len(files) == 8
    for file in files:
        assert f"later-{file['bytes']}" == names[file["inode"]] if file["synced"] else names[file["inode"]] == "unsynced", (file, names)
        assert f"inode {file['inode']} " in text
    assert "\nand 3 more\n" in text and "NOT UPLOADED" in text

    # Who waits for them gets them at once.
    for size in sizes:
        with open(f"{mount.point}/later-{size}", "rb") as f:
            assert len(f.read()) == size
    with open(f"{mount.point}/unsynced", "rb") as f:
        assert len(f.read()) == 300_000
    wait_until(lambda: left(good, writer) == (0, 0, 0), 60, "nothing to be left")
    assert "Files not uploaded yet" not in good("status", writer.point)


def test_the_mount_tells_what_is_not_uploaded_while_the_server_is_away(site):
    server = site.server("away-behind")
    server.volume("v")
    writer = server.mount("v", "away-behind", options=[f"--writeback={site.path('away-behind-spool')}"])
    with open(f"{writer.point}/written", "wb", buffering=0) as f:
        f.write(os.urandom(200_000))
        server.kill()
        wait_until(lambda: not server.json("status", writer.point)["connected"], 30, "the mount to know")
        told = server.json("status", writer.point)
        assert (told["figures"]["writeback_files"], told["figures"]["writeback_bytes"]) == (1, 200_000)
        assert [file["bytes"] for file in told["not_uploaded"]] == [200_000]
        server.start()
        os.fsync(f.fileno())
    wait_until(lambda: server.json("status", writer.point)["not_uploaded"] == [], 60, "it to be uploaded")
    writer.umount()


def test_uploads_are_no_faster_than_their_limit(server, site):
    """How long they take at most says nothing: the machine may be slow.  How long at least is what the limit is for."""
    rate, files, size = 2 << 20, 8, 1 << 20
    server.volume("limited", "--block-size", "1MiB")
    writer = server.mount("limited", options=[f"--writeback={site.path('limited-behind')}", f"--upload-limit={rate}"])

    def uploaded():
        return server.json("status", writer.point)["figures"]["writeback_bytes"] == 0
    began = time.monotonic()
    for i in range(files):
        synced(f"{writer.point}/{i}", size)
    wait_until(uploaded, 120, "the uploads")
    took = time.monotonic() - began
    # The first block may go at once.
    assert took >= (files - 1) * size / rate, took
    writer.umount()


def test_a_directory_that_is_none_is_said(cli):
    for verb in (["list"], ["drop", "--yes"]):
        code, _, err = cli("writeback", *verb, "/nonexistent")
        assert code == 1 and "neither a write-back directory nor the id of one" in err


def test_options_that_do_not_go_together_are_refused(cli, site):
    for options in (["--writeback=/x", "--ro"], ["--upload-limit=1MiB"], ["--writeback-size=1GiB"]):
        code, _, err = cli("mount", "files", site.path("nowhere"), *options)
        assert code == 2 and "--writeback" in err


def test_a_second_directory_is_refused(cli, site):
    code, _, err = cli("mount", "files", site.path("nowhere"), "--writeback", "/a", "--writeback", "/b")
    assert code == 2 and "cannot use --writeback /b: there can be only one, and /a was named before" in err


# -- where it may be

def refused_mount(cli, site, directory):
    point = site.path("refused")
    os.makedirs(point, exist_ok=True)
    code, _, err = cli("mount", "files", point, f"--writeback={directory}")
    assert code == 1 and err.startswith("epochfs: cannot mount files: "), (code, err)
    return err


def test_a_directory_in_use_for_something_else_is_refused(cli, site, mount):
    directory = site.path("in-use")
    os.mkdir(directory)
    with open(f"{directory}/thesis.tex", "w", encoding="ascii"):
        pass
    assert "it is not empty, and no write-back directory" in refused_mount(cli, site, directory)
    assert os.listdir(directory) == ["thesis.tex"]


def test_a_directory_on_an_epochfs_mount_is_refused(cli, site, mount):
    os.mkdir(f"{mount.point}/within")
    for directory in (f"{mount.point}/within", f"{mount.point}/within/new", f"{mount.point}/within/new/"):
        err = refused_mount(cli, site, directory)
        assert f"would be on {mount.point}, which is an EpochFS mount itself" in err
    assert os.listdir(f"{mount.point}/within") == []
    os.rmdir(f"{mount.point}/within")


def test_a_directory_whose_parent_is_missing_is_refused(cli, site):
    assert "cannot be made: the directory it is in must be there" in refused_mount(cli, site, site.path("missing/behind"))


def test_a_directory_in_memory_is_warned_of(cli, good, site, mount):
    point, memory, log = (site.path(f"memory-{name}") for name in ("point", "disk", "log"))
    os.mkdir(point)
    os.mkdir(memory)
    site.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", memory])
    try:
        code, _, err = cli("mount", "files", point, f"--writeback={memory}/behind", "--log-file", log)
        said = f"the write-back directory {memory}/behind is in memory (tmpfs)"
        assert code == 0 and err.count(said) == 1, err
        with open(log, encoding="utf-8") as f:
            assert f.read().count(said) == 1
        good("umount", point)
    finally:
        site.run(["umount", memory])


def test_a_directory_of_somebody_else_is_said_to_be_that(server, site):
    directory = site.path("not-yours")
    os.mkdir(directory, 0o700)
    user = pwd.getpwnam("nobody")
    program = site.program_for_users()
    for verb in (["list"], ["drop", "--yes"]):
        code, _, err = site.run(["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", program, "writeback",
                                 *verb, directory, "--server", server.address], check=False)
        assert code == 1 and err.endswith(f"{directory}: Permission denied\n"), err


# -- what is written is reserved at the server before

def test_a_limit_is_reached_at_write(server, site):
    server.volume("narrow", "--max-bytes", "4MiB")
    mount = server.mount("narrow", options=[f"--writeback={site.path('narrow-behind')}", "--upload-limit=1KiB"])
    synced(f"{mount.point}/fits", 3 << 20)
    with open(f"{mount.point}/does-not", "wb", buffering=0) as f:
        with pytest.raises(OSError) as refused:
            for _ in range(3):
                f.write(os.urandom(1 << 20))
        assert refused.value.errno == errno.EDQUOT
    mount.umount()


# -- a mount that is gone

def read_fails(path):
    with pytest.raises(OSError) as refused:
        with open(path, "rb", buffering=0) as f:
            f.read(1)
    assert refused.value.errno == errno.EIO


def test_a_mount_that_is_gone_is_told_of_until_it_is_back_or_given_up(good, cli, server, mount, site):
    directory = site.path("left-behind")
    writer = server.mount("files", "left", options=[f"--writeback={directory}", "--upload-limit=1KiB"])
    for name in ("left-1", "left-2", "left-deleted"):
        synced(f"{writer.point}/{name}", 3 << 19)
    status = json.loads(good("status", writer.point, "--json"))
    assert status["writeback_directory"] == directory and status["writeback_folder"].startswith(f"{directory}/")
    assert f"in {directory}" in good("status", writer.point)
    writer.kill()
    writer.wait_dead()
    wait_until(lambda: not any(w["mounted"] for w in json.loads(good("status", "--json"))["writebacks"]), 30, "the server to know")
    os.unlink(f"{mount.point}/left-deleted")

    # Each file once in the log, however often it is read.
    for _ in range(3):
        read_fails(f"{mount.point}/left-1")
        read_fails(f"{mount.point}/left-2")
    lines = [line for line in server.log_text().splitlines() if "its newest data is on" in line]
    assert [sum(f"/{name} " in line for line in lines) for name in ("left-1", "left-2")] == [1, 1], lines

    entries = {e["path"]: e for e in json.loads(good("writeback", "list", directory, "--json"))}
    assert {path: e["deleted"] for path, e in entries.items()} == {"/left-1": False, "/left-2": False, "/left-deleted": True}
    assert {(e["directory"], e["mounted"]) for e in entries.values()} == {(directory, False)}
    text = good("writeback", "list", directory)
    assert "/left-deleted (deleted)" in text and directory in text
    assert f"{writer.point} is not mounted, and nobody can read 3 files of files until then." in text
    assert f"again, with --writeback {directory}.\n" in text

    code, _, err = cli("writeback", "drop", directory, input="no\n")
    assert code == 1 and "nothing was given up" in err
    assert f"Give up the newest data of 3 files, 4.5 MiB in all, which is in {directory} and not uploaded?" in err

    writer.start()
    assert all(e["mounted"] for e in json.loads(good("writeback", "list", directory, "--json")))
    assert "is not mounted" not in good("writeback", "list", directory)
    writer.umount()
    assert good("writeback", "list", directory) == "Nothing is left to upload.\n"
    with open(f"{mount.point}/left-1", "rb") as f:
        assert len(f.read()) == 3 << 19


def test_what_a_killed_mount_had_synced_is_not_called_missing(site):
    """Nor what it had only written, where that is all there is to say."""
    server = site.server("safe")
    server.volume("v")
    directory = site.path("safe-writeback")
    writer = server.mount("v", "safe", options=[f"--writeback={directory}", "--upload-limit=1KiB"])
    reader = server.mount("v", "safe-reader")      # so that the server knows who writes what
    for name in ("safe-1", "safe-2"):
        synced(f"{writer.point}/{name}", 3 << 19)
    with open(f"{writer.point}/unsynced", "wb", buffering=0) as f:
        f.write(b"x" * (1 << 20))
        assert "unsynced" in os.listdir(reader.point)
        writer.kill()
    writer.wait_dead()
    wait_until(lambda: "safe ended" in server.log_text(), 30, "the server to know")
    gone = [line.split(" warn ")[1] for line in server.log_text().splitlines() if " went away " in line]
    host = os.uname().nodename
    assert gone == [
        f"volume v: mount {host}:{writer.point} went away while it could write to 1 file: what it had written to it and not synced is missing: "
        "/unsynced",
        f"volume v: mount {host}:{writer.point} went away before all it had synced was uploaded: the newest data of 2 files is safe in its "
        f"write-back directory {directory} on {host}, and is uploaded once the volume is mounted there with --writeback {directory}"], gone
    loss, = server.json("status")["losses"]
    assert (loss["paths"], loss["writeback"]) == (["/unsynced"], True)
    out = server.cli("status")[1]
    assert "what it had written to it and not synced is missing:\n  /unsynced\n" in out
    assert f"The data is safe in its write-back directory {directory}: mount the volume on {host} with it (--writeback)" in out
    writer.start()
    writer.umount()
    assert all(os.path.getsize(f"{reader.point}/{name}") == 3 << 19 for name in ("safe-1", "safe-2"))
    reader.umount()
    server.stop()


def test_what_a_mount_finds_is_told_on_the_terminal_and_in_its_log(cli, good, mount, site):
    point, log = site.path("found-point"), site.path("found.log")
    words = ["mount", "files", point, f"--writeback={site.path('found')}", "--upload-limit=1KiB", "--log-file", log]
    os.mkdir(point)
    good(*words)
    synced(f"{point}/found", 1 << 20)
    pid = int(json.loads(good("status", point, "--json"))["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "it to be gone")
    code, _, err = cli(*words)
    with open(log, encoding="utf-8") as f:
        logged = f.read()
    for said in ("is a dead mount, left by a process that was killed; it is replaced", "not uploaded; that goes on now"):
        assert code == 0 and (err.count(said), logged.count(said)) == (1, 1), (said, err, logged)
    good("umount", point)


@pytest.mark.parametrize("company", [False, True])
def test_a_server_that_waits_for_its_former_mounts_is_waited_for(site, company):
    """With company nobody has the lease: then it is not the hello that waits, but what comes after it."""
    server = tcp_server(site, f"grace-{company}")
    server.volume("v")
    mounts = [server.mount("v", f"grace-company-{company}")] if company else []
    directory = site.path(f"grace-behind-{company}")
    writer = server.mount("v", f"grace-{company}", options=[f"--writeback={directory}", "--upload-limit=1KiB"])
    for name in ("first", "second"):
        synced(f"{writer.point}/{name}", 1 << 20)
    for one in (writer, *mounts, server):
        one.kill()
    server.start()
    words = ["mount", "v", writer.point, "--server", server.tcp, f"--writeback={directory}"]
    # It has just started: a busy machine may let the time pass in the hello with company, too.
    code, _, err = server.cli(*words, "--timeout", "4s", check=False)
    reasons = ("what is not uploaded: after its start it waits for the mounts it had before",
               "answer within 4 s: it may be waiting for a mount that does not answer")
    assert code == 1 and any(f"{why}; mount again, or with a longer --timeout" in err for why in reasons), err
    code, _, err = server.cli(*words, check=False)
    assert code == 0 and "that goes on now" in err, err
    server.cli("umount", writer.point)
    assert server.json("writeback", "list") == []


def test_what_is_given_up_is_given_up_once(good, cli, server, mount, site):
    directory = site.path("given-up")
    writer = server.mount("files", "given-up", options=[f"--writeback={directory}", "--upload-limit=1KiB"])
    synced(f"{writer.point}/given-up", 5000)
    writer.kill()
    writer.wait_dead()
    code, out, _ = wait_until(lambda: [got for got in [cli("writeback", "drop", directory, input="y\n")] if got[0] == 0], 30,
                              "the mount's session to end")[0]
    assert (code, out) == (0, "1 file can be used again; it holds what was stored of it.\n")
    # Nothing is asked where nothing is lost.
    assert good("writeback", "drop", directory) == "0 files can be used again; they hold what was stored of them.\n"
    writer.umount()
    assert os.path.getsize(f"{mount.point}/given-up") == 0


# -- metadata that are restored

def test_marks_that_come_back_with_a_backup_are_found_or_given_up(site):
    """As docs/operations.md says under "Backup and restore"."""
    server = site.server("restored")
    server.volume("v")
    directory = site.path("restored-behind")
    writer = server.mount("v", "restored", options=[f"--writeback={directory}", "--upload-limit=1KiB"])
    for name in ("uploaded", "kept"):
        synced(f"{writer.point}/{name}", 100_000)
    writer.kill()
    writer.wait_dead()
    folder, = (name for name in os.listdir(directory) if name != "id")
    kept, = (e for e in server.json("writeback", "list") if e["path"] == "/kept")
    shutil.copytree(f"{directory}/{folder}", site.path("aside"))
    server.stop()
    backup = max(name for name in os.listdir(f"{server.data}/backup") if name.endswith(".mdb"))
    shutil.copy(f"{server.data}/backup/{backup}", site.path("copy.mdb"))
    server.start()
    writer.start()
    writer.umount()
    assert server.json("writeback", "list") == []
    server.stop()
    shutil.rmtree(f"{server.data}/meta")
    os.mkdir(f"{server.data}/meta", 0o700)
    shutil.copy(site.path("copy.mdb"), f"{server.data}/meta/data.mdb")
    server.start()

    # They have come back, and what they stand for is not in the folder of the restored metadata.
    def refused():
        code, _, err = server.cli("mount", "v", writer.point, f"--writeback={directory}", check=False)
        return err if code == 1 else ""
    assert "synced data of 2 files that is not uploaded should be in" in refused()
    now, = (name for name in os.listdir(directory) if name not in ("id", folder))
    for name in os.listdir(site.path("aside")):
        if name.startswith(f"{kept['inode']:016x}."):
            shutil.copy(f"{site.path('aside')}/{name}", f"{directory}/{now}")
    assert "synced data of 1 files that is not uploaded should be in" in refused()
    # What was found is uploaded.
    assert [e["path"] for e in server.json("writeback", "list")] == ["/uploaded"]
    assert os.listdir(f"{directory}/{now}") == ["lock"]
    server.cli("writeback", "drop", directory, "--yes")
    writer.start()
    assert [os.path.getsize(f"{writer.point}/{name}") for name in ("kept", "uploaded")] == [100_000, 0]
    writer.umount()
    assert folder in os.listdir(directory)
