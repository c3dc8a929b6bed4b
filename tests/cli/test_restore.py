"""The runbook "Damaged metadata" of docs/operations.md, step by step."""
import glob
import json
import os
import shutil


def test_damaged_metadata_are_refused_and_the_way_out_works(site):
    server = site.server("rescued", options=["--grace", "0"])
    server.volume("v")
    mount = server.mount("v", name="mount-rescued")
    with open(f"{mount.point}/before", "wb") as f:
        f.write(b"before" * 1000000)
    mount.umount()
    assert server.stop() == 0

    copy = sorted(glob.glob(f"{server.data}/backup/data-*.mdb"))[-1]
    shutil.copy(copy, site.path("copy.mdb"))
    server.start()
    mount.start()
    with open(f"{mount.point}/after", "wb") as f:
        f.write(b"AFTER!" * 1000000)
    mount.umount()
    assert server.stop() == 0

    with open(f"{server.data}/meta/data.mdb", "r+b") as f:
        f.truncate(os.path.getsize(f.name) // 2)
    code, _, err = site.run([site.binary, "serve", "--data", server.data], check=False)
    assert code == 1
    assert f"{server.data}/meta/data.mdb are damaged" in err and "backup" in err and "docs/operations.md" in err, err

    os.rename(f"{server.data}/meta", f"{server.data}/meta.damaged")
    os.mkdir(f"{server.data}/meta", 0o700)
    shutil.copy(site.path("copy.mdb"), f"{server.data}/meta/data.mdb")
    server.start()
    clean, text = server.fsck()
    assert clean, text

    # Objects of `after` are still in the store: none of them may pass for one of `new`.
    mount.start()
    assert os.listdir(mount.point) == ["before"]
    with open(f"{mount.point}/new", "wb") as f:
        f.write(b"newer!" * 1000000)
        os.fsync(f.fileno())
    mount.remount()
    for name, text in (("before", b"before"), ("new", b"newer!")):
        with open(f"{mount.point}/{name}", "rb") as f:
            assert f.read() == text * 1000000
    mount.umount()
    assert json.loads(server.cli("gc", "--json")[1])["counts"]["orphans"] > 0
    clean, text = server.fsck()
    assert clean, text
