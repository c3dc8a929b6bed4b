"""epochfs warm."""
import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess

import pytest

from control import Control, socket_path, tcp_server
from epochfs import drop_caches
from narrow import Narrow
from waiting import wait_until

SMALL, LARGE = 20000, 3 << 20


def fill(folder, small=100, large=2, seed=0):
    """Files with contents by their names; their total size."""
    os.makedirs(os.path.join(folder, "sub"), exist_ok=True)
    for i in range(small):
        with open(os.path.join(folder, "sub" if i % 2 else "", f"small{i}"), "wb") as f:
            f.write(content(seed + i, SMALL))
    for i in range(large):
        with open(os.path.join(folder, f"large{i}"), "wb") as f:
            f.write(content(seed + 1000 + i, LARGE))
    return small * SMALL + large * LARGE


def content(seed, size):
    """Incompressible, and another one for each seed."""
    return (os.urandom(64) + seed.to_bytes(8, "little")) * (size // 72) + b"x" * (size % 72)


@pytest.fixture(scope="module")
def server(site):
    return tcp_server(site, "warm")


class World:
    def __init__(self, site, server, name, *options, address=None):
        server.volume(name)
        self.site, self.server, self.name = site, server, name
        self.cache = site.path(f"{name}-cache")
        self.mount = server.mount(name, name, options=["--cache-dir", self.cache, *options], address=address)
        self.point = self.mount.point

    def warm(self, *words, code=0, timeout=120):
        got, out, err = self.server.cli("warm", *words, check=False, timeout=timeout)
        assert got == code, (out, err)
        return out, err

    def json(self, *words, code=0):
        return json.loads(self.warm(*words, "--json", code=code)[0])

    def status(self):
        return json.loads(self.server.cli("status", self.point, "--json")[1])

    def figures(self):
        return self.status()["figures"]

    def entries(self):
        found = []
        for base, _, names in os.walk(self.cache):
            found += [os.path.join(base, name) for name in names if re.match("^[of][0-9a-f]*-", name)]
        return found

    def pinned(self):
        return [path for path in self.entries() if os.stat(path).st_mode & 0o1000]

    def read_all(self):
        for base, _, names in os.walk(self.point):
            for name in names:
                with open(os.path.join(base, name), "rb") as f:
                    while f.read(1 << 20):
                        pass


NUMBERS = itertools.count()


@pytest.fixture
def world(site, server):
    made = []

    def make(*options):
        name = f"warmed{next(NUMBERS)}"
        made.append(World(site, server, name, *options))
        return made[-1]
    yield make
    for one in made:
        one.mount.discard()


def test_what_was_warmed_is_read_without_the_server(world):
    w = world()
    size = fill(w.point)
    out = w.json(w.point)
    assert (out["files"], out["bytes"], out["complete"], out["files_here"]) == (102, size, True, 0)
    assert out["fetched_bytes"] >= size
    w.mount.remount()
    before = w.figures()
    w.read_all()
    after = w.figures()
    assert after["cache_misses"] == before["cache_misses"]
    assert after["cache_hits"] > before["cache_hits"]
    again = w.json(w.point)
    assert (again["files"], again["bytes"], again["fetched_bytes"]) == (102, size, 0)


def test_what_was_just_written_is_stored_first(world):
    w = world()
    with open(os.path.join(w.point, "new"), "wb") as f:
        f.write(b"x" * 5000)
    assert w.json(w.point)["files"] == 1


def test_a_file_that_is_being_written_is_named(world):
    w = world()
    fill(w.point, 3, 0)
    path = os.path.join(w.point, "busy")
    with open(path, "wb") as f:
        f.write(b"x" * 5000)
        f.flush()
        out, err = w.warm(os.path.join(w.point, "sub"), code=0)
        # The mount is asked directly, as the tool would have it stored first.
        with Control(socket_path(w.point)) as control:
            f.write(b"y" * 100)
            f.flush()
            assert control.ask(op="warm", files=[[os.stat(path).st_ino, 0, 5100]])["files"][0]["error"] == 16


def test_paths_and_lists_say_what_to_fetch(world):
    w = world()
    fill(w.point)
    assert w.json(os.path.join(w.point, "large0"))["files"] == 1
    assert w.json(os.path.join(w.point, "sub"), os.path.join(w.point, "large1"))["files"] == 51
    list_path = w.site.path("list")
    with open(list_path, "w", encoding="ascii") as f:
        f.write(f"{w.point}/small0\n\n{w.point}/sub\n")
    assert w.json("--files-from", list_path)["files"] == 51
    assert w.json(os.path.join(w.point, "small2"), "--files-from", list_path)["files"] == 52
    odd = os.path.join(w.point, "odd\nname")
    os.link(os.path.join(w.point, "small0"), odd)
    done = subprocess.run([w.site.binary, "warm", "--files-from", "-", "-0", "--json"], input=f"{odd}\0{w.point}/large0\0".encode(),
                          capture_output=True, timeout=60, check=False)
    assert json.loads(done.stdout)["files"] == 2, done


def test_names_that_are_no_text(world):
    w = world()
    with open(os.path.join(w.point.encode(), b"\xff\xfe\x80"), "wb") as f:
        f.write(b"x" * 100)
    assert w.json(w.point)["files"] == 1


def test_links_and_other_mounts_are_not_followed(world, tmp_path):
    w = world()
    fill(w.point, 2, 0)
    (tmp_path / "outside").write_text("x")
    os.symlink(tmp_path, os.path.join(w.point, "link"))
    os.symlink(tmp_path / "outside", os.path.join(w.point, "file-link"))
    os.mkdir(os.path.join(w.point, "below"))
    assert w.json(w.point)["files"] == 2
    _, err = w.warm(os.path.join(w.point, "file-link"), code=1)
    assert "it is on no EpochFS mount" in err
    _, err = w.warm(w.point, os.path.join(w.point, "link"), code=1)
    assert f"link: it is not on the mount {w.point}; warm one mount at a time" in err


def test_of_two_mounts_at_a_time_the_first_is_warmed(world, tmp_path):
    a, b = world(), world()
    for w in (a, b):
        fill(w.point, 3, 0)
    names = tmp_path / "list"
    names.write_text(f"{a.point}\n{b.point}\n")
    for words in ([a.point, b.point], ["--files-from", str(names)]):
        out, err = a.warm(*words, code=1)
        assert out.startswith("3 files"), out
        assert err == f"epochfs: cannot cache {b.point}: it is not on the mount {a.point}; warm one mount at a time\n"
    assert b.entries() == []


def test_wrong_usage(world):
    w = world()
    for words, text in ((["warm"], "a path is needed"), (["warm", w.point, "--pin", "--unpin"], "cannot use --pin and --unpin together"),
                        (["warm", w.point, "--jobs", "0"], "jobs"), (["warm", w.point, "--jobs", "17"], "jobs")):
        code, _, err = w.server.cli(*words, check=False)
        assert code == 2 and text in err, err
    _, err = w.warm("/proc", code=1)
    assert err == "epochfs: cannot warm /proc: it is on no EpochFS mount\n"
    _, err = w.warm("--files-from", w.site.path("missing-list"), code=1)
    assert "cannot read" in err


def test_a_directory_is_no_list(world):
    w = world()
    fill(w.point, 3, 0)
    for words in (["--files-from", w.point], [w.point, "--files-from", w.point]):
        assert w.warm(*words, code=1) == ("", f"epochfs: cannot read {w.point}: Is a directory\n")
    folder = os.open(w.point, os.O_RDONLY)
    done = subprocess.run([w.site.binary, "warm", "--files-from", "-"], stdin=folder, capture_output=True, text=True, timeout=60, check=False)
    os.close(folder)
    assert (done.returncode, done.stderr) == (1, "epochfs: cannot read -: Is a directory\n")


def test_without_a_cache_it_says_what_to_do(site, server):
    server.volume("cacheless")
    mount = server.mount("cacheless", "cacheless")
    code, _, err = server.cli("warm", mount.point, check=False)
    assert (code, err) == (1, f"epochfs: cannot warm {mount.point}: it has no cache directory; mount it with --cache-dir DIR\n")
    mount.umount()


def test_on_the_host_of_the_server_small_files_are_here_already(site, server):
    server.volume("here")
    mount = server.mount("here", "here", options=["--cache-dir", site.path("here-cache")], address=server.address)
    fill(mount.point, 10, 1)
    out = json.loads(server.cli("warm", mount.point, "--json")[1])
    assert (out["files"], out["files_here"], out["bytes"], out["complete"]) == (1, 10, LARGE, True)
    assert "10 files are on this host already, in the store of the server" in server.cli("warm", mount.point)[1]
    mount.umount()


def test_files_that_are_missing_are_named_and_the_others_cached(world):
    w = world()
    fill(w.point, 3, 0)
    missing = [os.path.join(w.point, f"missing{i}") for i in range(25)]
    out, err = w.warm(w.point, *missing, code=1)
    assert "3 files" in out and "are cached" in out
    assert f"epochfs: cannot cache {missing[0]}: No such file or directory" in err
    assert "epochfs: and 5 more" in err
    found = w.json(w.point, *missing, code=1)
    assert (found["files"], found["files_failed"], found["complete"]) == (3, 25, False)


@pytest.mark.parametrize("first", ["missing", "/tmp"])
def test_arguments_are_as_good_as_files_of_a_list(world, tmp_path, first):
    """A path that is not there, or not on the mount, is a failure, wherever it stands; the others are warmed."""
    w = world()
    fill(w.point, 3, 0)
    bad = os.path.join(w.point, first)
    reason = "it is on no EpochFS mount" if os.path.exists(bad) else "No such file or directory"
    names = tmp_path / "list"
    names.write_text(f"{bad}\n{w.point}/sub\n{w.point}/small0\n")
    for words in ([bad, f"{w.point}/sub", f"{w.point}/small0"], ["--files-from", str(names)], [bad, "--files-from", str(names)]):
        out = w.json(*words, code=1)
        failed = words.count(bad) + ("--files-from" in words)
        assert (out["files"], out["files_failed"], out["complete"]) == (2, failed, False), words
        assert out["failures"][0] == {"path": bad, "why": reason}
    out, err = w.warm(bad, f"{w.point}/small0", code=1)
    assert out.startswith("1 file, ") and err == f"epochfs: cannot cache {bad}: {reason}\n"


@pytest.mark.parametrize("last, reason", [("/none", "No such file or directory"), ("/tmp", "it is on no EpochFS mount")])
def test_of_what_is_on_no_mount_those_that_are_not_named_are_counted(world, tmp_path, last, reason):
    w = world()
    missing = [f"{w.point}/missing{i}" for i in range(1219)] + [last]
    names = tmp_path / "list"
    names.write_text("".join(f"{name}\n" for name in missing))
    for words in (missing, ["--files-from", str(names)]):
        lines = w.warm(*words, code=1)[1].splitlines()
        assert len(lines) == 20 + 2
        assert lines[-2:] == ["epochfs: and 1,200 more", "epochfs: cannot warm anything: none of the paths is on an EpochFS mount"]
    _, err = w.warm(missing[0], last, code=1)
    assert f"epochfs: cannot cache {last}: {reason}\n" in err
    names.write_text("\n")
    assert w.warm("--files-from", str(names), code=1) == ("", f"epochfs: cannot warm anything: {names} names no file\n")


def test_no_room_is_told_in_bytes(world):
    w = world("--cache-size", "16MiB")
    fill(w.point, 0, 10)
    out = w.json(w.point, code=1)
    assert out["files_failed"] == 0
    assert out["bytes_without_room"] >= 14 << 20
    assert out["bytes"] + out["bytes_without_room"] == 10 * LARGE
    assert (out["complete"], out["files"] + out["files_without_room"]) == (False, 10)
    assert "make --cache-size" in out["why_without_room"]
    assert re.search("There is no room for .*: make --cache-size ", w.warm(w.point, code=1)[0])


def packs(w, files=300, size=100_000):
    """Small files that do not become smaller in their packs; their total size."""
    for i in range(files):
        with open(os.path.join(w.point, f"packed{i}"), "wb") as f:
            f.write(os.urandom(size))
    os.sync()
    return files * size


def test_packs_that_find_no_room_are_not_fetched_for_each_of_their_files(world):
    w = world("--cache-size", "16MiB")
    size = packs(w)
    w.mount.remount()
    before = w.figures()["server_bytes"]
    out = w.json(w.point, code=1)
    fetched = w.figures()["server_bytes"] - before
    assert out["bytes"] > 4 << 20 and out["bytes"] + out["bytes_without_room"] == size
    assert out["fetched_bytes"] <= fetched <= size
    # It is as full as it gets: the next time nothing comes.
    before = w.figures()["server_bytes"]
    again = w.json(w.point, "--jobs", "16", code=1)
    assert (again["files"], again["fetched_bytes"]) == (out["files"], 0)
    assert w.figures()["server_bytes"] == before


def test_packs_that_find_no_room_for_pins_are_not_fetched(world):
    w = world("--cache-size", "24MiB")
    fill(w.point, 0, 6)
    pinned = w.json(w.point, "--pin")
    assert (pinned["files"], pinned["complete"]) == (6, True)
    size = packs(w)
    before = w.figures()["server_bytes"]
    w.json(w.point, code=1)
    assert w.figures()["server_bytes"] - before <= size
    assert len(w.pinned()) == 6


def test_with_a_cache_out_of_use_nothing_is_fetched_and_it_says_why(site, server):
    server.volume("unused")
    folder = site.path("no-such-parent", "cache")
    mount = server.mount("unused", "unused", options=["--cache-dir", folder])
    w = World.__new__(World)
    w.server, w.mount, w.point, w.site = server, mount, mount.point, site
    packs(w, 20)
    fill(w.point, 0, 1)
    mount.remount()
    files = [[os.stat(os.path.join(w.point, name)).st_ino, 0, size] for name, size in (("packed0", 100_000), ("large0", LARGE))]
    before = w.figures()["server_bytes"]
    assert w.warm(w.point, code=1) == (
        "", f"epochfs: cannot warm {w.point}: the cache directory {folder} is out of use: No such file or directory\n")
    # The mount is asked directly, as the tool does not ask it then.
    with Control(socket_path(w.point)) as control:
        got = control.ask(op="warm", files=files)["files"]
    assert [(one["error"], one["fetched"], one["missing"]) for one in got] == [(0, 0, 100_000), (0, 0, LARGE)]
    assert w.figures()["server_bytes"] == before
    mount.umount()


def test_a_disk_that_is_too_full_is_told_as_such(world):
    w = world("--cache-min-free", "99%")
    packs(w, 20)
    before = w.figures()["server_bytes"]
    out = w.json(w.point, code=1)
    assert (out["files"], out["files_without_room"], out["complete"]) == (0, 20, False)
    assert out["why_without_room"] == f"the disk of the cache directory {w.cache} has no more than --cache-min-free left"
    assert w.figures()["server_bytes"] == before


def test_what_is_pinned_survives_a_scan_that_would_evict_it(world):
    w = world("--cache-size", "24MiB")
    fill(w.point, 100, 1)
    pinned = w.json(w.point, "--pin")
    assert pinned["complete"]
    assert len(w.pinned()) >= 2
    cache, = w.status()["cache"]
    assert pinned["bytes"] <= cache["pinned_bytes"] <= cache["bytes"]
    assert "PINNED" in w.server.cli("status", w.point)[1]
    os.mkdir(os.path.join(w.point, "scan"))
    for i in range(12):
        with open(os.path.join(w.point, "scan", f"file{i}"), "wb") as f:
            f.write(content(i, 4 << 20))
    # More than the cache holds, and told: whatever may go has to go.
    w.json(os.path.join(w.point, "scan"), code=1)
    assert w.figures()["cache_refusals"] > 0
    assert w.json(os.path.join(w.point, "sub"), os.path.join(w.point, "large0"))["fetched_bytes"] == 0
    assert w.warm(w.point, "--unpin")[0] == "Nothing of 113 files is pinned now.\n"
    assert w.pinned() == []
    assert [cache["pinned_bytes"] for cache in w.status()["cache"]] == [0]


@pytest.mark.chance
def test_what_is_not_pinned_makes_way(world):
    """The other half: the same scan evicts what is not pinned."""
    w = world("--cache-size", "24MiB")
    fill(w.point, 0, 4)
    w.mount.remount()
    w.read_all()
    wait_until(lambda: w.status()["cache"][0]["bytes"] >= 4 * LARGE, 30, "what was read to be in the cache")
    w.mount.remount()
    os.mkdir(os.path.join(w.point, "scan"))
    for i in range(12):
        with open(os.path.join(w.point, "scan", f"file{i}"), "wb") as f:
            f.write(content(i, 4 << 20))
    w.json(os.path.join(w.point, "scan"), code=1)
    assert w.figures()["cache_evictions"] > 0


def damage(path, where):
    with open(path, "r+b") as f:
        f.seek(where)
        byte = f.read(1)
        f.seek(where)
        f.write(bytes([byte[0] ^ 255]))


@pytest.mark.chance
def test_damage_is_found_and_mended_by_verify(world):
    w = world()
    fill(w.point, 50, 1)
    w.json(w.point)
    w.mount.remount()
    files = w.entries()
    assert len(files) >= 2
    for path in files:
        damage(path, 5000)
    out = w.json(w.point, "--verify")
    assert out["fetched_bytes"] > 0 and out["complete"]
    # Some may have been found by the mount's own scrubbing, just before.
    assert out["damaged"] > 0
    assert w.figures()["cache_damaged"] >= len(files)
    assert w.json(w.point, "--verify")["damaged"] == 0
    drop_caches()
    before = w.figures()["cache_damaged"]
    w.read_all()
    assert w.figures()["cache_damaged"] == before


def objects(server):
    return [os.path.join(folder, name) for folder, _, names in os.walk(f"{server.data}/objects") for name in names
            if re.fullmatch("[0-9a-f]{16}", name)]


@pytest.fixture
def rotten(site):
    """A server of its own: what is in its store gets damaged."""
    server = tcp_server(site, f"warm-rotten-{next(NUMBERS)}")
    w = World(site, server, f"rotten{next(NUMBERS)}")
    yield w
    w.mount.discard()


@pytest.mark.parametrize("options", [[], ["--verify"]], ids=["plain", "verify"])
def test_damage_in_the_store_of_the_server_is_told_as_that(rotten, options):
    w = rotten
    packs(w, 1)
    w.mount.remount()
    for path in objects(w.server):
        damage(path, 50_000)
    _, err = w.warm(w.point, *options, code=1)
    assert err == f"epochfs: cannot cache {w.point}/packed0: it is damaged in the server's store; " \
        'see "Corrupted object" in docs/operations.md\n'


def test_only_the_files_that_are_damaged_in_a_pack_are_named(rotten):
    w = rotten
    fill(w.point, 6, 0)
    w.mount.remount()
    path = max(objects(w.server), key=os.path.getsize)
    damage(path, os.path.getsize(path) // 2)
    out = w.json(w.point, code=1)
    bad = {one["path"] for one in out["failures"]}
    readable = set()
    for folder, _, names in os.walk(w.point):
        for name in names:
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as f:
                f.read()
                readable.add(os.path.join(folder, name))
    assert (out["files"], len(bad), len(readable)) == (5, 1, 5) and not bad & readable, (out, readable)


def test_of_a_large_file_that_is_damaged_the_log_says_more(rotten):
    w = rotten
    fill(w.point, 0, 1)
    os.sync()
    w.mount.remount()
    for path in objects(w.server):
        damage(path, os.path.getsize(path) // 2)
    _, err = w.warm(w.point, code=1)
    assert err == f"epochfs: cannot cache {w.point}/large0: Input/output error; see the log of the mount\n"
    assert 'see "Corrupted object" in docs/operations.md' in w.mount.log_text()


def test_what_cannot_be_unpinned_is_told_as_that(world):
    w = world()
    fill(w.point, 3, 1)
    w.json(w.point, "--pin")
    out, err = w.warm(f"{w.point}/missing", w.point, "--unpin", code=1)
    assert (out, err) == ("Nothing of 4 files is pinned now.\n", f"epochfs: cannot unpin {w.point}/missing: No such file or directory\n")


def big(w, size=256 << 20):
    path = os.path.join(w.point, "big")
    block = os.urandom(1 << 20)
    with open(path, "wb") as f:
        for _ in range(size >> 20):
            f.write(block)
        f.flush()
        os.fsync(f.fileno())
    return path


def fetching(w):
    return w.status()["cache"][0]["bytes"] > 8 << 20


def test_interrupted_it_says_what_was_done_and_the_mount_stops(world):
    w = world("--cache-size", "1GiB")
    path = big(w)
    for number, code in ((signal.SIGINT, 1), (signal.SIGKILL, -9)):
        process = subprocess.Popen([w.site.binary, "warm", path, "--jobs", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: fetching(w) or process.poll() is not None, 60, "something to be fetched")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == code, (out, err)
        if number == signal.SIGINT:
            assert "stopped before the end: interrupted" in err
            assert "fetched in" in out
        # Nobody waits for it any more: it does not go on to the end.
        wait_until(lambda: w.figures()["open_files"] == 0, 30, "the mount to stop")
    assert w.status()["cache"][0]["bytes"] < 256 << 20
    assert w.json(path)["bytes"] == 256 << 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_before_it_has_begun_it_says_so_as_later(world, number):
    w = world()
    process = subprocess.Popen([w.site.binary, "warm", "--files-from", "-", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdin.write("/missing\n")
    process.stdin.flush()
    assert "cannot cache /missing" in process.stderr.readline()
    process.send_signal(number)     # it waits for the rest of the list
    assert process.wait(30) == 1
    assert json.loads(process.stderr.read()) == {"error": "stopped before the end: interrupted"}
    out = json.loads(process.stdout.read())
    assert (out["files"], out["files_failed"], out["complete"]) == (0, 1, False)
    process.communicate()


def test_interrupted_while_the_mount_does_not_answer_it_says_so(world):
    w = world()
    process = None
    try:
        w.mount.freeze()
        process = subprocess.Popen([w.site.binary, "warm", w.point], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: has_socket(process.pid), 30, "it to turn to the mount")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        w.mount.process.send_signal(signal.SIGCONT)
        if process:
            process.kill()
            process.communicate()
    assert process.returncode == 1
    assert err == "epochfs: stopped before the end: interrupted\n"
    assert out.startswith("0 files")


def has_socket(pid):
    """Of its own: the connection to the mount, which it makes when it has seen to signals."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if int(fd) > 2 and os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
                return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_are_ignored_stay_ignored(world, number):
    """Of those a script starts with &, the shell has them ignore SIGINT."""
    w = world()
    fill(w.point, 3, 0)
    process = subprocess.Popen([w.site.binary, "warm", "--files-from", "-", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    try:
        process.stdin.write("/missing\n")
        process.stdin.flush()
        assert "cannot cache /missing" in process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(f"{w.point}\n", timeout=60)
    finally:
        process.kill()
        process.communicate()
    out = json.loads(out)
    assert (process.returncode, err, out["files"], out["files_failed"]) == (1, "", 3, 1)


def test_signals_that_are_ignored_stay_ignored_while_it_fetches(far):
    path = os.path.join(far.point, "ignoring")
    before = far.figures()["server_bytes"]
    process = subprocess.Popen([far.site.binary, "warm", "--jobs", "1", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    try:
        wait_until(lambda: far.figures()["server_bytes"] > before + 100_000 or process.poll() is not None, 60, "something to be fetched")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (0, "") and "5 files, 25 MiB, are cached" in out


def test_a_mount_that_is_killed_ends_it(world):
    w = world("--cache-size", "1GiB")
    path = big(w)
    process = subprocess.Popen([w.site.binary, "warm", path, "--jobs", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: fetching(w) or process.poll() is not None, 60, "something to be fetched")
    w.mount.kill()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the mount has ended" in err


def test_a_server_that_goes_away_ends_it_within_the_timeout(site):
    server = tcp_server(site, "warm-away")
    w = World(site, server, "away", "--timeout", "3s")
    fill(w.point, 200, 4)
    w.server.cli("warm", os.path.join(w.point, "sub"))
    server.kill()
    code, _, err = server.cli("warm", w.point, "--jobs", "4", check=False, timeout=60)
    assert code == 1
    assert "epochfs: " in err
    server.start()
    wait_until(lambda: server.cli("warm", w.point, check=False)[0] == 0, 60, "it to work again")
    w.mount.umount()


def test_a_cache_that_goes_away_meanwhile_is_no_crash(world):
    w = world()
    fill(w.point, 50, 2)
    subprocess.run(["rm", "-rf", w.cache], check=True)
    code = w.server.cli("warm", w.point, check=False)[0]
    assert code in (0, 1)
    assert w.mount.alive()
    w.read_all()


def test_files_that_are_deleted_and_changed_meanwhile(world):
    w = world()
    fill(w.point, 200, 2)
    inodes = {name: os.stat(os.path.join(w.point, name)).st_ino for name in ("small0", "small2", "large0")}
    os.unlink(os.path.join(w.point, "small0"))
    os.truncate(os.path.join(w.point, "large0"), 100)
    fd = os.open(w.point, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    with Control(socket_path(w.point)) as control:
        got = control.ask(op="warm", files=[[inodes["small0"], 0, SMALL], [inodes["small2"], 0, SMALL], [inodes["large0"], 0, LARGE],
                                            [1 << 60, 0, 5]])["files"]
    # Until the server has freed it, it is there for whoever knows its number.
    assert got[0]["error"] in (0, 2, 116)
    assert (got[1]["error"], got[1]["bytes"]) == (0, SMALL)
    assert (got[2]["error"], got[2]["bytes"]) == (0, 100)
    assert got[3]["error"] != 0


def test_content_changed_by_another_mount_is_not_hidden_by_a_warm_in_between(world, server):
    """A file whose pages the kernel has, changed elsewhere, warmed here, opened here: it is the new one."""
    w = world()
    other = server.mount(w.name, f"{w.name}-other")
    for size in (5000, LARGE):
        name = f"file{size}"
        path = os.path.join(w.point, name)
        for point, letter in ((w.point, b"a"), (other.point, b"b")):
            with open(os.path.join(point, name), "wb") as f:
                f.write(letter * size)
                f.flush()
                os.fsync(f.fileno())
            if letter == b"a":
                inode = os.stat(path).st_ino
                with open(path, "rb") as f:
                    assert set(f.read()) == {ord("a")}
        with Control(socket_path(w.point)) as control:
            assert control.ask(op="warm", files=[[inode, 0, size]])["files"][0]["error"] == 0
        with open(path, "rb") as f:
            assert set(f.read()) == {ord("b")}
    other.umount()


def test_no_progress_where_nobody_looks(world):
    w = world()
    fill(w.point, 5, 0)
    out, err = w.warm(w.point)
    assert err == ""
    assert re.fullmatch(r"5 files, 97.7 KiB, are cached: [0-9.]+ (bytes|KiB) fetched in [0-9.]+ s, [0-9.]+ [A-Za-z]+/s\.\n", out), out
    assert w.warm(w.point, "--quiet") == ("", "")


def on_a_terminal(command, input=None):
    """Runs it with standard error on a terminal: (exit code, stdout, the lines drawn there)."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=input or subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    drawn = b""
    try:
        while data := os.read(ours, 65536):
            drawn += data
    except OSError:     # EIO: nobody has it open any more
        pass
    os.close(ours)
    out = process.communicate(timeout=60)[0]
    return process.returncode, out, drawn.decode().split("\r\x1b[K")


BAR = re.compile(r"warm  MiB  \[(=*>? *)\]  ( ?\d+) %  (\d+) / (\d+)  ETA \d+:\d\d  [0-9.]+ (KiB|MiB)/s")
UNCOUNTED = re.compile(r"warm  MiB  \d+  \d+ files?  [0-9.]+ (bytes|KiB|MiB)/s")
MIB_A_SECOND, FILES, FILE_MIB = 6, 5, 5


@pytest.fixture(scope="module")
def far(site, server):
    """A mount that gets 6 MiB a second, and folders of 25 MiB: whatever the machine, filling its cache takes four seconds or more."""
    with Narrow(server.tcp) as network:
        w = World(site, server, "far", "--cache-size", "1GiB", address=network.address)
        for name in ("tree", "listed", "redirected", "piped", "ignoring"):
            os.mkdir(os.path.join(w.point, name))
            for i in range(FILES):
                with open(os.path.join(w.point, name, str(i)), "wb") as f:
                    f.write(os.urandom(FILE_MIB << 20))
        w.mount.remount()
        network.rate = MIB_A_SECOND << 20
        yield w
        network.rate = None
        w.mount.discard()


def list_of(w, name, first="missing"):
    """A list of the files, and of another one before them; one that is missing is not counted."""
    path = w.site.path(f"{name}.list")
    with open(path, "w", encoding="ascii") as f:
        f.write(f"{w.point}/{first}\n")
        f.writelines(f"{w.point}/{name}/{i}\n" for i in range(FILES))
    return path


def assert_bar(lines):
    """Every line of it, and that it moves on."""
    shown = [match for match in map(BAR.fullmatch, lines) if match]
    assert shown, lines
    for match in shown:
        bar, percent, done, total = match.group(1), *(int(match.group(k)) for k in (2, 3, 4))
        assert len(bar) == 20 and bar.count("=") == 20 * done // total, match
        assert total == FILES * FILE_MIB + 1 and percent == 100 * done // total, match
    steps = [int(match.group(3)) for match in shown]
    assert steps == sorted(steps) and set(steps) <= {FILE_MIB * (i + 1) for i in range(FILES)}, lines
    assert lines[-1] == "", "the bar is cleared at the end"


def test_a_bar_and_what_is_left_are_shown_on_a_terminal(far):
    code, out, lines = on_a_terminal([far.site.binary, "warm", "--jobs", "1", f"{far.point}/tree"])
    assert code == 0 and "5 files, 25 MiB, are cached" in out, (out, lines)
    assert_bar(lines)


def test_the_files_of_a_list_are_counted_for_the_bar(far):
    code, out, lines = on_a_terminal([far.site.binary, "warm", "--jobs", "1", "--files-from", list_of(far, "listed")])
    assert code == 1 and "5 files, 25 MiB, are cached" in out, (out, lines)
    assert_bar(lines)


def test_a_list_on_standard_input_is_counted_from_where_it_is(far):
    with open(list_of(far, "redirected", "piped"), "rb", buffering=0) as f:
        assert f.readline() == f"{far.point}/piped\n".encode()
        code, out, lines = on_a_terminal([far.site.binary, "warm", "--jobs", "1", "--files-from", "-"], input=f)
    assert code == 0 and "5 files, 25 MiB, are cached" in out, (out, lines)
    assert_bar(lines)


def test_of_a_list_from_a_pipe_only_what_is_done_is_shown(far):
    with subprocess.Popen(["cat", list_of(far, "piped")], stdout=subprocess.PIPE) as cat:
        code, out, lines = on_a_terminal([far.site.binary, "warm", "--jobs", "1", "--files-from", "-"], input=cat.stdout)
    assert code == 1 and "5 files, 25 MiB, are cached" in out, (out, lines)
    assert any(UNCOUNTED.fullmatch(line) for line in lines), lines
    assert not any("[" in line or "ETA" in line for line in lines), lines


def test_a_share_is_not_exceeded(world):
    w = world("--cache-size", "64MiB", "--cache-share", "25%")
    fill(w.point, 0, 10)
    out = w.json(w.point, code=1)
    assert out["bytes"] <= 16 << 20
    assert w.status()["cache"][0]["bytes"] <= (16 << 20) + (1 << 20)
    assert "--cache-share 25%" in w.status()["options"]
