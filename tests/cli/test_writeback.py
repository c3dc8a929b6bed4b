"""epochfs writeback, and the options of mounts that belong to it."""
import json
import os

import pytest


@pytest.fixture
def writer(server, site, request):
    """A mount that uploads nothing by itself for a while."""
    mount = server.mount("files", f"writeback-{request.node.name[:30]}",
                         options=[f"--writeback={site.path(request.node.name)}", "--upload-limit=1KiB"])
    yield mount
    if mount.alive():
        mount.umount()


def synced(path, size):
    with open(path, "wb", buffering=0) as f:
        f.write(os.urandom(size))
        os.fsync(f.fileno())


def test_what_is_not_uploaded_is_listed(good, writer, site, request):
    directory = site.path(request.node.name)
    assert json.loads(good("writeback", "list", directory, "--json")) == []
    assert good("writeback", "list", directory) == "Everything is uploaded.\n"
    synced(f"{writer.point}/not-uploaded", 1 << 20)
    entry, = json.loads(good("writeback", "list", directory, "--json"))
    assert (entry["volume"], entry["path"], entry["size_bytes"], entry["mount_point"]) == ("files", "/not-uploaded", 1 << 20, writer.point)
    assert "/not-uploaded" in good("writeback", "list", entry["id"])
    assert f"{writer.point} has data of 1 file of files that is not uploaded" in good("status")
    writer.umount()
    assert good("writeback", "list", directory) == "Everything is uploaded.\n"


def test_a_directory_that_is_none_is_said(cli):
    for verb in (["list"], ["drop", "--yes"]):
        code, _, err = cli("writeback", *verb, "/nonexistent")
        assert code == 1 and "neither a write-back directory nor the id of one" in err


def test_options_that_do_not_go_together_are_refused(cli, site):
    for options in (["--writeback=/x", "--ro"], ["--upload-limit=1MiB"], ["--writeback-size=1GiB"]):
        code, _, err = cli("mount", "files", site.path("nowhere"), *options)
        assert code == 2 and "--writeback" in err
