"""epochfs volume."""
import json
import re

import pytest

FIELDS = {"name", "id", "block_size", "compression", "retention_s", "max_bytes", "max_files", "consistency", "created", "used_bytes",
          "used_files", "trash_bytes", "trash_files", "sessions"}


def test_a_new_volume_has_the_defaults(good):
    good("volume", "create", "plain")
    v = json.loads(good("volume", "show", "plain", "--json"))
    assert set(v) == FIELDS
    assert (v["block_size"], v["compression"], v["retention_s"], v["consistency"]) == (4 << 20, "none", 86400, "strict")
    assert (v["max_bytes"], v["max_files"], v["used_bytes"], v["sessions"]) == (0, 0, 0, 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", v["created"])


def test_every_setting_can_be_given(good):
    v = json.loads(good("volume", "create", "given", "--block-size", "256KiB", "--compression=zstd:7", "--retention", "30d",
                        "--max-bytes", "1.5GiB", "--max-files", "1,000,000", "--consistency", "relaxed", "--json"))
    assert (v["block_size"], v["compression"], v["retention_s"]) == (256 << 10, "zstd:7", 30 * 86400)
    assert (v["max_bytes"], v["max_files"], v["consistency"]) == (3 << 29, 1000000, "relaxed")


def test_settings_are_changed_one_by_one(good):
    good("volume", "create", "changing", "--retention", "5d", "--compression", "lz4")
    v = json.loads(good("volume", "set", "changing", "--max-bytes", "10MiB", "--json"))
    assert (v["max_bytes"], v["retention_s"], v["compression"], v["consistency"]) == (10 << 20, 5 * 86400, "lz4", "strict")
    v = json.loads(good("volume", "set", "changing", "--max-bytes", "none", "--retention", "0", "--consistency", "relaxed",
                        "--compression", "none", "--json"))
    assert (v["max_bytes"], v["retention_s"], v["compression"], v["consistency"]) == (0, 0, "none", "relaxed")


def test_a_person_sees_a_table_in_us_formats(good):
    good("volume", "create", "shown", "--max-bytes", "2GiB", "--max-files", "1234567", "--retention", "30d")
    out = good("volume", "show", "shown")
    assert re.search(r"^Block size +4 MiB$", out, re.M)
    assert re.search(r"^Size limit +2 GiB$", out, re.M)
    assert re.search(r"^File limit +1,234,567$", out, re.M)
    assert re.search(r"^Retention +30d$", out, re.M)
    assert re.search(r"^Created +\d\d/\d\d/\d{4} \d\d:\d\d:\d\d \S+$", out, re.M)
    lines = good("volume", "list").splitlines()
    assert lines[0].startswith("NAME ")
    assert any(line.startswith("shown ") and "2 GiB" in line for line in lines)
    assert "shown" in [v["name"] for v in json.loads(good("volume", "list", "--json"))]


@pytest.mark.parametrize("option, value, text", [
    ("--block-size", "32KiB", "the allowed range is 64 KiB to 64 MiB"),
    ("--block-size", "65MiB", "the allowed range is 64 KiB to 64 MiB"),
    ("--block-size", "huge", "a size such as"),
    ("--block-size", "4XB", "a size such as"),
    ("--compression", "gzip", "none, lz4, zstd"),
    ("--compression", "zstd:20", "1 to 19"),
    ("--retention", "soon", "a time such as"),
    ("--retention", "4000d", "3650d"),
    ("--max-files", "many", "a number such as"),
    ("--consistency", "loose", "strict|relaxed"),
])
def test_wrong_values_name_what_is_allowed(refused, option, value, text):
    refused(2, ["volume", "create", "wrong", option, value], f"{option} {value}", text)


@pytest.mark.parametrize("name", ["", "Upper", "-dash", ".dot", "sl/ash", "a" * 64, "sp ace", "umläut"])
def test_wrong_names_are_refused(refused, name):
    refused(2, ["volume", "create", "--", name], "1 to 63")


def test_the_longest_and_oddest_names_work(good):
    for name in ["a" * 63, "0", "a.b_c-d"]:
        good("volume", "create", name)
        good("volume", "delete", name, "--yes")


def test_a_name_is_taken_once(good, refused):
    good("volume", "create", "twice")
    refused(1, ["volume", "create", "twice"], "cannot create volume twice: ")


def test_what_does_not_exist_is_named(refused):
    for words in (["show"], ["set", "--retention", "1d"], ["delete", "--yes"]):
        refused(1, ["volume", words[0], "missing", *words[1:]], "there is no volume missing; epochfs volume list shows those there are")


def test_setting_nothing_is_wrong_usage(refused):
    refused(2, ["volume", "set", "plain"], "nothing to change")
    refused(2, ["volume", "set", "plain", "--block-size", "1MiB"], "unknown option --block-size")


def test_deleting_asks_first(good, refused, cli):
    good("volume", "create", "doomed")
    refused(1, ["volume", "delete", "doomed"], "not confirmed", input="n\n")
    refused(1, ["volume", "delete", "doomed"], "not confirmed")
    good("volume", "show", "doomed")
    code, out, err = cli("volume", "delete", "doomed", input="y\n")
    assert (code, out) == (0, "Deleted volume doomed.\n")
    assert "This cannot be undone." in err
    refused(1, ["volume", "show", "doomed"], "doomed")


def test_a_deleted_name_is_free_again(good):
    good("volume", "create", "again", "--block-size", "64KiB")
    good("volume", "delete", "again", "--yes")
    good("volume", "create", "again")
    assert json.loads(good("volume", "show", "again", "--json"))["block_size"] == 4 << 20


@pytest.mark.parametrize("text, size", [("4194304", 4 << 20), ("4M", 4 << 20), ("4MiB", 4 << 20), ("4mib", 4 << 20), ("4MB", 4000000),
                                        ("100.5K", 102912), ("2 GiB", 2 << 30), ("none", 0)])
def test_sizes_are_what_the_help_says(good, text, size):
    volume = json.loads(good("volume", "create", "sized", "--block-size", "64K", "--max-bytes", text, "--json"))
    good("volume", "delete", "sized", "--yes")
    assert (volume["block_size"], volume["max_bytes"]) == (64 << 10, size)


def test_a_block_size_is_a_power_of_two(good, refused):
    refused(2, ["volume", "create", "odd", "--block-size", "4MB"], "4,000,000 bytes", "power of two")
    assert json.loads(good("volume", "create", "even", "--block-size", "8M", "--json"))["block_size"] == 8 << 20
    help_text = " ".join(good("volume", "create", "--help").split())
    assert "a power of two" in help_text and "4M and 4MiB are 4,194,304 bytes, and 4MB is 4,000,000" in help_text


def test_nobody_is_asked_about_a_mounted_volume(mount, refused):
    said = refused(1, ["volume", "delete", "files"], "cannot delete volume files: it is mounted on ", f" at {mount.point}; unmount it first (it was last heard of ", "if it was killed, the server forgets it after 5m of silence)",
                   input="y\n")
    assert "[y/N]" not in said
    assert said.count("\n") == 1


def test_a_mounted_volume_is_not_deleted(mount, refused, good):
    refused(1, ["volume", "delete", "files", "--yes"], "cannot delete volume files: ", "mounted")
    assert json.loads(good("volume", "show", "files", "--json"))["sessions"] == 1


def test_one_file_is_not_one_files(good, server):
    server.volume("single")
    mount = server.mount("single")
    with open(f"{mount.point}/x", "wb") as f:
        f.write(b"x")
    assert mount.umount() == 0
    assert "1 byte in 1 file\n" in good("volume", "show", "single")


def test_what_a_killed_mount_over_tcp_still_holds_is_named(site):
    server = site.server("holding", options=["--listen", "127.0.0.1:0", "--session-timeout", "90s"])
    server.volume("held")
    with open(f"{server.data}/address", encoding="ascii") as f:
        address, = [a for a in f.read().split() if a.startswith("127.")]
    mount = server.mount("held", address=address)
    mount.kill()
    mount.discard()
    code, _, err = server.cli("volume", "delete", "held", "--yes", check=False)
    assert code == 1 and f" at {mount.point}; " in err and "if it was killed, the server forgets it after 1m 30s of silence" in err, err
    assert server.stop() == 0
