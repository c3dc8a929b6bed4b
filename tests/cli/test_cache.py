"""epochfs mount --cache-dir, as a user says it."""
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
        assert "it is a size (200GiB) or a percentage of the file system (20%)" in text
        assert not os.path.exists(os.path.join(folder, "kept"))
