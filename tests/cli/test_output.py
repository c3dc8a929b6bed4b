"""Standard output that cannot be written to, and errors for programs."""
import json
import os
import subprocess

import pytest


@pytest.fixture
def full(site, server):
    """full(words) -> (exit code, standard error) with a standard output that is always full."""
    def run(*words):
        with open("/dev/full", "w", encoding="ascii") as out:
            done = subprocess.run([site.binary, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60,
                                  env=dict(os.environ, EPOCHFS_SERVER=server.address), check=False)
        return done.returncode, done.stderr
    return run


WORDS = [["status"], ["status", "--json"], ["volume", "list"], ["volume", "show", "files"], ["volume", "show", "files", "--json"], ["trash", "list", "files"],
         ["trash", "empty", "files", "--yes"], ["writeback", "list"], ["fsck", "--quick"], ["gc"], ["gc", "--json"], ["scrub"], ["--help"], ["--version"],
         ["help", "mount"]]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_what_cannot_be_written_is_an_error(mount, full, words):
    said = "cannot write to standard output: No space left on device"
    assert full(*words) == (1, (json.dumps({"error": said}, separators=(",", ":")) if "--json" in words else f"epochfs: {said}") + "\n")


def test_of_a_mount_as_well(mount, full):
    for words in (["status", mount.point], ["status", mount.point, "--json"]):
        code, err = full(*words)
        assert code == 1 and "cannot write to standard output: No space left on device" in err, (words, err)


def test_what_is_wrong_already_keeps_its_exit_code(full):
    code, err = full("volume", "lst", "--json")
    assert code == 2 and "did you mean" in json.loads(err)["error"]


@pytest.mark.parametrize("words, code, text", [
    (["volume", "show", "nothing"], 1, "cannot show volume nothing: "),
    (["trash", "list", "nothing"], 1, "cannot list the trash of nothing: "),
    (["status", "/"], 1, "cannot show the mount of /: "),
    (["status", "--server", "unix:/nowhere.sock"], 1, "cannot show the status: "),
    (["warm", "/nowhere"], 1, "/nowhere"),
    (["writeback", "drop", "/nowhere", "--yes"], 1, "cannot give up /nowhere: "),
    (["volume", "show"], 2, "too few arguments"),
    (["volume", "show", "files", "--nonsense"], 2, "unknown option --nonsense"),
    (["volume", "nonsense"], 2, "unknown verb 'nonsense'"),
], ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_with_json_errors_are_json(cli, mount, words, code, text):
    got, out, err = cli(*words, "--json")
    assert got == code, (out, err)
    line, = err.splitlines()
    assert text in json.loads(line)["error"] and set(json.loads(line)) == {"error"}
    # What people are told is the same, with a name before it.
    assert cli(*words)[2].startswith("epochfs: ")
