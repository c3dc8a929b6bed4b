"""epochfs mount --cache-dir, as a user says it."""
import contextlib
import json
import os
import shutil
import subprocess

import pytest

from waiting import wait_until


def mount(site, server, folder, *words):
    """In the background, by somebody who stands in the folder."""
    point = os.path.join(folder, "point")
    os.makedirs(point, exist_ok=True)
    done = subprocess.run([site.binary, "mount", "cached", point, "--server", server.address, "--log-file", os.path.join(folder, "log"),
                           *words], cwd=folder, timeout=60, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return point, done.returncode, done.stderr


@pytest.fixture
def folder(site, request):
    path = site.path(request.node.name[:60])
    os.makedirs(path)
    return path


@pytest.fixture(scope="module")
def server(site):
    server = site.server("cache")
    server.volume("cached")
    return server


@pytest.mark.parametrize("words", [["--cache-dir", "kept"], ["-o", "cache-dir=kept,cache-size=100MiB"]])
def test_a_relative_directory_is_where_the_user_stands(site, server, folder, words):
    point, code, text = mount(site, server, folder, *words)
    assert (code, text) == (0, "")
    try:
        assert os.path.exists(os.path.join(folder, "kept", "epochfs-cache"))
        shutil.rmtree(os.path.join(folder, "kept"))
        wait_until(lambda: f"cache: {folder}/kept is out of use" in log_of(folder), 30, "it to be missed, by its whole name")
    finally:
        site.run([site.binary, "umount", point], 60, True, {})


@pytest.mark.parametrize("words", [["-o", "cache-dir=one,cache-dir=two"], ["-o", "cache-dir=one", "-o", "cache-dir=two"]])
def test_lists_name_several(site, server, folder, words):
    point, code, text = mount(site, server, folder, *words)
    assert (code, text) == (0, "")
    try:
        assert [os.path.exists(os.path.join(folder, name, "epochfs-cache")) for name in ("one", "two")] == [True, True]
    finally:
        site.run([site.binary, "umount", point], 60, True, {})


def log_of(folder):
    with open(os.path.join(folder, "log"), encoding="utf-8") as f:
        return f.read()


def test_a_directory_with_something_else_in_it_is_refused_and_left_alone(site, server, folder):
    full = os.path.join(folder, "full")
    os.mkdir(full)
    with open(os.path.join(full, "precious"), "w", encoding="ascii") as f:
        f.write("x")
    _, code, text = mount(site, server, folder, "--cache-dir", full)
    assert code == 1
    assert text == (f"epochfs: cannot mount cached: cannot use the cache directory {full}: it holds something else than a cache; "
                    "name an empty directory, or a new one\n")
    assert os.listdir(full) == ["precious"]


@pytest.mark.parametrize("size", ["0", "0%", "101%", "-1%", "much", "5%%", ""])
def test_sizes_that_make_no_sense_are_refused(site, server, folder, size):
    for option in ("--cache-size", "--cache-min-free"):
        _, code, text = mount(site, server, folder, "--cache-dir", "kept", option, size)
        assert code == 2
        assert "it is a size (200GiB) or a percentage of the file system (20%), and not 0" in text
        assert not os.path.exists(os.path.join(folder, "kept"))


def test_a_size_below_what_a_cache_needs_is_refused(site, server, folder):
    for size in ("1K", "4095KiB"):
        _, code, text = mount(site, server, folder, "--cache-dir", "kept", "--cache-size", size)
        assert code == 2 and "no use below 4MiB" in text, text
    point, code, text = mount(site, server, folder, "--cache-dir", "kept", "--cache-size", "4MiB")
    assert (code, text) == (0, "")
    site.run([site.binary, "umount", point])


# -- one that cannot be used

def states(site, point):
    _, text, _ = site.run([site.binary, "status", point])
    return json.loads(site.run([site.binary, "status", point, "--json"])[1])["cache"], text


def test_one_that_cannot_be_used_is_told_in_the_log_and_by_status(site, server, folder):
    where = os.path.join(folder, "missing", "kept")
    point, code, text = mount(site, server, folder, "--cache-dir", "missing/kept")
    try:
        said = f"cache: {where} is out of use: No such file or directory; tried again every 10 s"
        assert code == 0 and text.count(said) == 1, text
        wait_until(lambda: "is mounted on" in log_of(folder), 10, "the rest of the log")
        assert log_of(folder).count(said) == 1, log_of(folder)
        caches, text = states(site, point)
        assert [(c["in_use"], c["reason"]) for c in caches] == [(False, "No such file or directory")]
        assert "out of use: No such file or directory" in text
        os.mkdir(os.path.dirname(where))
        wait_until(lambda: f"cache: {where} is in use again" in log_of(folder), 30, "it to be found")
        caches, text = states(site, point)
        assert [(c["in_use"], c["reason"]) for c in caches] == [(True, None)] and "out of use" not in text
    finally:
        site.run([site.binary, "umount", point])


def test_one_on_a_full_disk_is_said_to_be_full(site, server, folder):
    disk = os.path.join(folder, "disk")
    os.mkdir(disk)
    site.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk])
    try:
        with open(os.path.join(disk, "filler"), "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(bytes(4096)):
                pass
        point, code, text = mount(site, server, folder, "--cache-dir", "disk/kept")
        caches, _ = states(site, point)
        site.run([site.binary, "umount", point])
    finally:
        site.run(["umount", disk])
    assert code == 0 and "disk/kept is out of use: No space left on device" in text, text
    assert [c["reason"] for c in caches] == ["No space left on device"]


def test_who_must_pass_files_through_needs_one_that_can_be_used(site, server, folder):
    os.symlink("nowhere", os.path.join(folder, "dangling"))
    for where, why in (("missing/kept", "No such file or directory"), ("dangling", "No such file or directory")):
        refused(site, server, folder, f"files cannot be passed through: the cache directory {folder}/{where} cannot be used: {why}",
                "--passthrough", "on", "--cache-dir", where)
        point, code, _ = mount(site, server, folder, "--passthrough", "auto", "--cache-dir", where)
        assert code == 0
        site.run([site.binary, "umount", point])


# -- where it may be

def refused(site, server, folder, text, *words):
    _, code, said = mount(site, server, folder, *words)
    assert code == 1 and text in said, said


def test_one_beneath_the_mount_point_is_refused(site, server, folder):
    point = os.path.join(folder, "point")
    os.makedirs(os.path.join(point, "there"))
    os.symlink("point", os.path.join(folder, "link"))
    for option in ("--cache-dir", "--writeback"):
        for where in ("point", "point/there", "point/new", "link/new/", "new/../point/new", "point/there/../new"):
            refused(site, server, folder, f"would be beneath the mount point {point}, and covered by it", option, where)
    refused(site, server, folder, f"the replica directory {point}/r would be beneath", "--replica", "--replica-dir", f"{point}/r")
    assert os.listdir(point) == ["there"] and os.listdir(os.path.join(point, "there")) == []


def test_one_around_the_mount_point_is_refused(site, server, folder):
    point = os.path.join(folder, "point")
    for option, what in (("--cache-dir", "cache"), ("--writeback", "write-back")):
        refused(site, server, folder, f"the mount point {point} is in the {what} directory {folder}; name one outside", option, folder)
    refused(site, server, folder, f"the mount point {point} is in the replica directory", "--replica", "--replica-dir", folder)


def test_one_beside_the_mount_point_with_a_name_that_begins_alike_is_fine(site, server, folder):
    point, code, text = mount(site, server, folder, "--cache-dir", "point2", "--cache-dir", "point/../kept")
    assert (code, text) == (0, "")
    site.run([site.binary, "umount", point])


def test_one_on_an_epochfs_mount_is_refused(site, server, folder):
    other = server.mount("cached", "other")
    refused(site, server, folder, f"the cache directory {other.point}/new/deep would be on {other.point}, which is an EpochFS mount itself",
            "--cache-dir", f"{other.point}/new/deep")
    assert os.listdir(other.point) == []
    other.umount()


def test_one_that_is_named_twice_is_refused(site, server, folder):
    os.mkdir(os.path.join(folder, "there"))
    os.symlink("there", os.path.join(folder, "link"))
    for first, second in (("kept", "kept/../kept"), ("there", "link"), ("there/", f"{folder}/./there")):
        refused(site, server, folder, "is named twice", "--cache-dir", first, "--cache-dir", second)
