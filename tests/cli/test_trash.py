"""epochfs trash, over a mount."""
import json
import os
import re
import shutil

import pytest

from waiting import wait_until


@pytest.fixture
def folder(mount, request):
    path = os.path.join(mount.point, request.node.name)
    os.mkdir(path)
    return path


def write(path, text):
    """Stored when it returns: what the trash lists is what the server has."""
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def listed(good, folder):
    """Paths in the trash that were beneath the folder, relative to it."""
    top = os.path.basename(folder)
    entries = json.loads(good("trash", "list", "files", "--json"))
    return [dict(e, path=e["path"].lstrip("/").removeprefix(top + "/")) for e in entries if f"{top}/" in e["path"]]


def test_a_deleted_file_is_listed_and_comes_back(good, folder):
    write(f"{folder}/model.pt", "weights")
    os.unlink(f"{folder}/model.pt")
    entry, = listed(good, folder)
    assert (entry["path"], entry["type"], entry["size"]) == ("model.pt", "file", 7)
    assert entry["expires"] > entry["deleted"]
    out = good("trash", "restore", "files", f"{os.path.basename(folder)}/model.pt")
    assert out.startswith("Restored ") and "model.pt" in out
    assert read(f"{folder}/model.pt") == "weights"
    assert listed(good, folder) == []


def test_a_replaced_file_comes_back_under_another_name(good, refused, folder):
    write(f"{folder}/a", "old")
    write(f"{folder}/b", "new")
    os.rename(f"{folder}/b", f"{folder}/a")
    path = f"{os.path.basename(folder)}/a"
    refused(1, ["trash", "restore", "files", path], f"cannot restore ", "a")
    good("trash", "restore", "files", path, "--to", f"/{path}.old")
    assert (read(f"{folder}/a"), read(f"{folder}/a.old")) == ("new", "old")


def test_of_several_the_last_comes_back_and_any_by_number(good, folder):
    for text in ("first", "second"):
        write(f"{folder}/log", text)
        os.unlink(f"{folder}/log")
    first, second = listed(good, folder)
    top = os.path.basename(folder)
    good("trash", "restore", "files", f"{top}/log")
    assert read(f"{folder}/log") == "second"
    good("trash", "restore", "files", str(first["inode"]), "--to", f"{top}/first")
    assert read(f"{folder}/first") == "first"


def test_a_whole_tree_comes_back(good, folder):
    os.makedirs(f"{folder}/run/7/deep")
    write(f"{folder}/run/7/model", "m")
    write(f"{folder}/run/7/deep/log", "l")
    os.symlink("model", f"{folder}/run/7/link")
    shutil.rmtree(f"{folder}/run")
    assert not os.path.exists(f"{folder}/run")
    out = json.loads(good("trash", "restore", "files", f"{os.path.basename(folder)}/run", "--recursive", "--json"))
    assert len(out) == 6
    assert (read(f"{folder}/run/7/model"), read(f"{folder}/run/7/deep/log")) == ("m", "l")
    assert os.readlink(f"{folder}/run/7/link") == "model"


def test_a_file_brings_its_directories_back(good, folder):
    os.makedirs(f"{folder}/x/y")
    write(f"{folder}/x/y/z", "zed")
    shutil.rmtree(f"{folder}/x")
    good("trash", "restore", "files", f"{os.path.basename(folder)}/x/y/z")
    assert read(f"{folder}/x/y/z") == "zed"


def test_what_is_not_in_the_trash_is_named(refused, mount):
    refused(1, ["trash", "restore", "files", "never/was"], "cannot restore never/was: it is not in the trash of files")
    refused(1, ["trash", "list", "nothing"], "there is no volume nothing; epochfs volume list shows those there are")
    refused(2, ["trash", "restore", "files", "a", "--to", "b", "--recursive"], "--recursive")


def test_a_name_full_of_tricks_is_shown_harmlessly(good, folder):
    name = b"evil\x1b[2J\n\xff"
    open(os.path.join(folder.encode(), name), "wb").close()
    os.unlink(os.path.join(folder.encode(), name))
    out = good("trash", "list", "files")
    assert "\x1b" not in out
    assert re.search(r"evil\\x1b\[2J\\n\\xff$", out, re.M)
    assert any("evil" in e["path"] for e in json.loads(good("trash", "list", "files", "--json")))


def test_emptying_asks_and_frees_the_space(good, refused, mount, server):
    server.volume("bin")
    point = server.mount("bin").point
    with open(f"{point}/big", "wb") as f:
        f.write(os.urandom(3 << 20))
        os.fsync(f.fileno())
    os.unlink(f"{point}/big")

    def show():
        return json.loads(good("volume", "show", "bin", "--json"))

    assert (show()["trash_files"], show()["trash_bytes"]) == (1, 3 << 20)
    refused(1, ["trash", "empty", "bin"], "not confirmed", input="\n")
    assert json.loads(good("trash", "empty", "bin", "--older-than", "1h", "--yes", "--json")) == {"files": 0, "bytes": 0, "back": None}
    emptied = json.loads(good("trash", "empty", "bin", "--yes", "--json"))
    assert (emptied["files"], emptied["bytes"]) == (1, 3 << 20)
    wait_until(lambda: show()["trash_bytes"] == 0, 30, "the trash to be freed")
    assert good("trash", "list", "bin") == "The trash of bin is empty.\n"


def test_without_retention_nothing_is_kept(good, server):
    server.volume("fleeting", "--retention", "0")
    point = server.mount("fleeting").point
    write(f"{point}/gone", "x" * 1000)
    os.unlink(f"{point}/gone")
    wait_until(lambda: json.loads(good("volume", "show", "fleeting", "--json"))["trash_files"] == 0, 30, "the file to be freed")
    assert json.loads(good("trash", "list", "fleeting", "--json")) == []
