"""Help, version, and what is said to somebody who types something wrong."""
import os
import subprocess
import pwd
import re
import signal
import time

import pytest

VERBS = ["serve", "mount", "umount", "volume", "trash", "status", "fsck", "gc", "scrub"]
GROUPS = {"volume": ["create", "list", "show", "set", "delete"], "trash": ["list", "restore", "empty"]}
ALL = [[v] for v in VERBS] + [[group, v] for group, verbs in GROUPS.items() for v in verbs]


def test_help_lists_every_verb(good):
    out = good("--help")
    for verb in VERBS:
        assert re.search(rf"^    {verb} ", out, re.M), verb
    assert "EXAMPLES" in out


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_verb_explains_itself(good, words):
    out = good(*words, "--help")
    assert out.startswith(f"NAME\n    epochfs {' '.join(words)} - ")
    assert "USAGE\n    epochfs " in out
    assert "EXAMPLES\n" in out
    assert max(len(line) for line in out.splitlines()) <= 130


@pytest.mark.parametrize("words", [w for w in ALL if w[0] not in GROUPS or len(w) == 2], ids=" ".join)
def test_every_verb_knows_the_option_that_was_meant(refused, words):
    refused(2, [*words, "--hepl"], "unknown option --hepl; did you mean --help?", f"see epochfs {' '.join(words)} --help")


def test_the_version_is_told(good):
    assert re.fullmatch(r"epochfs \d+\.\d+\.\d+\n", good("--version"))


def test_an_unknown_verb_is_answered_with_the_nearest(refused):
    refused(2, ["vloume", "list"], "unknown verb 'vloume'; did you mean epochfs volume?")
    refused(2, ["volume", "crate", "x"], "did you mean epochfs volume create?")


def test_nothing_to_do_is_wrong_usage(refused):
    refused(2, [], "epochfs --help")
    refused(2, ["volume"], "epochfs volume --help")


def test_missing_and_surplus_arguments_are_wrong_usage(refused):
    refused(2, ["volume", "show"], "too few arguments: epochfs volume show NAME")
    refused(2, ["volume", "list", "x"], "unexpected argument 'x'")
    refused(2, ["mount", "files"], "too few arguments")


def test_a_server_that_is_not_there_is_named_at_once(site, refused):
    began = time.monotonic()
    where = site.path("nowhere.sock")
    refused(1, ["volume", "list", "--server", f"unix:{where}"], "cannot list the volumes: ", where, "--server")
    assert time.monotonic() - began < 9      # it waits for 10 s for one that does not answer


def test_mount_names_a_server_that_is_not_there_and_what_to_do(site, refused):
    where = site.path("nowhere.sock")
    point = site.path("mnt-of-nobody")
    os.mkdir(point)
    for words in (["mount", "files", point], ["mount", "files", point, "--foreground"]):
        refused(1, [*words, "--server", f"unix:{where}"], "cannot mount files: ", where, "is it running?", "--server", "EPOCHFS_SERVER")


@pytest.fixture
def stuck(site):
    """A server that takes connections and does not answer."""
    server = site.server("stuck")
    server.freeze()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.discard()


@pytest.mark.parametrize("words, seconds", [
    (["mount", "files", "POINT", "--timeout", "2s"], 2),
    (["mount", "files", "POINT", "--timeout", "2s", "--foreground"], 2),
    (["status"], 10),
])
def test_a_server_that_does_not_answer_is_not_waited_for_longer_than_said(site, stuck, words, seconds):
    point = site.path("mnt-of-stuck")
    os.makedirs(point, exist_ok=True)
    began = time.monotonic()
    code, _, err = stuck.cli(*(point if word == "POINT" else word for word in words), check=False)
    took = time.monotonic() - began
    assert code == 1
    assert f"the server at {stuck.address} did not answer within {seconds} s; is it stopped, or overloaded?" in err
    assert seconds <= took < seconds + 20, took


def test_a_user_the_socket_is_not_for_is_told_who_it_is_for(server, site):
    user = pwd.getpwnam("nobody")
    program = site.program_for_users()
    code, _, err = site.run(["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", program, "status",
                             "--server", server.address], check=False)
    assert code == 1 and "as root or as the user the server runs as" in err and "EPOCHFS_SERVER" in err, err


def test_a_name_that_cannot_be_resolved_is_said_to_be_that(site, refused):
    reason = "the name nohost.invalid cannot be resolved: "      # in the resolver's words, which differ from one call to the next
    point = site.path("mnt-of-no-name")
    os.mkdir(point)
    for words in (["status"], ["mount", "files", point]):
        refused(1, [*words, "--server", "nohost.invalid:7"], "cannot reach the server at nohost.invalid:7: ", reason)


def test_an_address_that_is_none_is_refused(refused):
    refused(2, ["status", "--server", "somewhere"], "somewhere")


def test_the_help_explains_placeholders_it_uses(good):
    assert "COUNT" not in good("warm", "--help")
    assert "COUNT is a number" in good("volume", "create", "--help")
    assert "TIME is a number" in good("serve", "--help")


def test_the_first_server_of_several_that_answers_is_used(site, server, good):
    good("volume", "list", "--server", f"unix:{site.path('nowhere.sock')},{server.address}")


@pytest.mark.parametrize("words, text", [
    (["--replica", "--writeback", "wb"], "cannot use --writeback and --replica together"),
    (["--ro", "--writeback", "wb"], "cannot use --writeback and --ro together"),
    (["--replica-dir", "here"], "--replica-dir and --replica-max-lag need --replica"),
    (["--replica-max-lag", "5s"], "--replica-dir and --replica-max-lag need --replica"),
    (["--shared-locks"], "--shared-locks needs --ro"),
    (["--upload-limit", "1MiB"], "--writeback-size and --upload-limit need --writeback"),
])
def test_options_of_mounts_that_do_not_go_together_are_refused(server, words, text):
    code, out, err = server.cli("mount", "files", "/nowhere", *words, check=False)
    assert (code, out) == (2, "")
    assert text in err


def test_a_log_file_that_cannot_be_written_is_told_before_mounting(server, site):
    point = site.path("unlogged")
    os.mkdir(point)
    code, out, err = server.cli("mount", "files", point, "--log-file", "/nowhere/log", check=False)
    assert (code, out) == (1, "")
    assert "cannot write the log file /nowhere/log: No such file or directory" in err
    assert not os.path.ismount(point)


def test_a_port_that_is_too_large_is_no_other_one(server):
    code, _, err = server.cli("status", "--server", "127.0.0.1:65537", check=False)
    assert code and "127.0.0.1:65537" in err


def test_nothing_is_mounted_over_what_a_server_needs(site, refused):
    """Whichever server, and whether it runs or not."""
    store = site.path("store-elsewhere")
    other = site.server("covered", options=["--store", f"dir:{store}"])
    os.mkdir(os.path.join(other.data, "mine"))
    os.symlink(other.data, site.path("link-to-covered"))
    points = [(other.data, other.data), (f"{other.data}/meta", other.data), (f"{other.data}/mine", other.data),
              (site.path("link-to-covered"), other.data), (f"{site.path('link-to-covered')}/mine", other.data), (store, store)]
    for running in (True, False):
        for point, found in points:
            refused(1, ["mount", "files", point],
                    f"cannot mount files on {point}: {found} is the data directory of a server, or its store; name a directory outside")
            assert not os.path.ismount(point)
        if running:
            assert other.stop() == 0


@pytest.mark.parametrize("option", [["--cache-dir"], ["--writeback"], ["--replica", "--replica-dir"]], ids=lambda o: o[-1])
def test_no_directory_of_a_mount_is_in_what_a_server_keeps(site, refused, option):
    store = site.path(f"store-{option[-1]}")
    other = site.server(f"around{option[-1]}", options=["--store", f"dir:{store}"])
    other.volume("files")
    point, link = site.path(f"mnt-in{option[-1]}"), site.path(f"link-in{option[-1]}")
    os.mkdir(point)
    os.symlink(other.data, link)
    for directory, found in [(other.data, other.data), (f"{other.data}/mine", other.data), (f"{other.data}/objects/a/b", other.data),
                             (f"{link}/mine", other.data), (f"{store}/mine", store)]:
        refused(1, ["mount", "files", point, "--server", other.address, *option, directory],
                f"cannot mount files with {option[-1]} {directory}: {found} is the data directory of a server, or its store; "
                "name a directory outside")
        assert not os.path.ismount(point)
    assert not os.path.exists(f"{other.data}/mine") and not os.path.exists(f"{store}/mine")
    other.stop()


def test_nothing_is_mounted_above_its_own_server(site, server):
    above = os.path.dirname(server.data)
    code, _, err = server.cli("mount", "files", above, check=False)
    assert code == 1 and f"would be beneath the mount point {above}, and covered by it" in err, err
    assert not os.path.ismount(above)


MARKED = "EpochFS object store, format 1\n"


@pytest.mark.parametrize("mode, owner, kind, found", [
    (0o755, 0, "file", True),
    (0o755, 0, "directory", False),
    (0o755, 0, "other text", False),
    (0o755, 0, "link", False),
    (0o755, 20001, "file", False),      # neither root's nor that of the folder's owner
    (0o1777, 0, "file", False),         # as in /tmp, where anybody can put one
    (0o1777, 20001, "file", False),
])
def test_what_anybody_may_have_put_there_does_not_make_a_directory_a_servers(site, mount, server, mode, owner, kind, found):
    top = site.path(f"marked-{mode:o}-{owner}-{kind.replace(' ', '-')}")
    marker, point = os.path.join(top, "EPOCHFS-STORE"), os.path.join(top, "point")
    os.makedirs(point)
    os.chmod(top, mode)
    if kind == "directory":
        os.mkdir(marker)
    elif kind == "link":
        with open(f"{top}/elsewhere", "w", encoding="ascii") as f:
            f.write(MARKED)
        os.symlink("elsewhere", marker)
    else:
        with open(marker, "w", encoding="ascii") as f:
            f.write(MARKED if kind == "file" else kind)
        os.chown(marker, owner, owner)
    code, _, err = server.cli("mount", "files", point, check=False)
    if found:
        assert code == 1 and f"{top} is the data directory of a server, or its store; name a directory outside" in err, err
    else:
        assert code == 0, err
        server.cli("umount", point)


@pytest.mark.parametrize("mode, owner, found", [(0o755, 0, True), (0o755, 20001, False), (0o1777, 0, False)])
def test_nor_does_what_looks_like_the_files_of_a_server(site, mount, server, mode, owner, found):
    top = site.path(f"looks-{mode:o}-{owner}")
    point = os.path.join(top, "point")
    for folder in (point, f"{top}/meta"):
        os.makedirs(folder)
    os.chmod(top, mode)
    for name in ("lock", "starts", "meta/data.mdb"):
        with open(os.path.join(top, name), "wb") as f:
            os.fchown(f.fileno(), owner, owner)
    code, _, err = server.cli("mount", "files", point, check=False)
    assert code == found, err
    if not found:
        server.cli("umount", point)


def test_nothing_is_mounted_over_the_root_of_the_system(server, site):
    """Among mounts of its own, and in the foreground, so that nothing happens where it is."""
    words = ["unshare", "--mount", site.binary, "mount", "files", "/", "--foreground", "--server", server.address]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 1
    assert "cannot mount files: / is the root of the system; name a directory of its own" in done.stdout
