#!/usr/bin/python3
"""Names of a replica mount against an empty FUSE file system: tests/bench/replica.py BUILD_DIR [--files N] [--rounds N]

Random stat, and random open and close, of every file once in a fresh mount, by one and by four processes, against
yardstick.c, which has as many names and answers by arithmetic; then the same again, with what the kernel has kept.  The
best round counts.  The empty one speaks /dev/fuse alone; the replica is measured over that and over io_uring."""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from sides import EpochFS, Yardstick, build_load, compile_here  # noqa: E402

SHAPE = {"files": 20000, "folders": 100, "size": 4096}
KINDS = [(what, processes) for what in ("stat", "open") for processes in (1, 4)]
TARGET = 0.9


def files_below(root):
    return sorted(os.path.join(where, name) for where, _, names in os.walk(root) for name in names)


def measure(binary, names, what, processes, seed):
    done = subprocess.run([binary, what, str(processes), str(seed)], input="".join(n + "\n" for n in names), stdout=subprocess.PIPE,
                          text=True, check=True)
    return float(done.stdout)


def take(rates, side, binary, fresh, below, names):
    for seed, (what, processes) in enumerate(KINDS):
        fresh()
        for state in ("fresh", "kept"):
            rate = measure(binary, [os.path.join(below, n) for n in names], what, processes, seed)
            key = (what, processes, state, side)
            rates[key] = max(rate, rates.get(key, 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--files", type=int, default=SHAPE["files"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    shape = dict(SHAPE, files=options.files)
    scratch = tempfile.mkdtemp(prefix="replica.", dir=options.build)
    ours = EpochFS(os.path.join(os.path.abspath(options.build), "epochfs"), os.path.abspath(scratch))
    empty = Yardstick(os.path.abspath(scratch), shape, 3600)
    rates = {}
    try:
        load, binary = build_load(scratch), compile_here(os.path.join(scratch, "names"), ("names.c",))
        ours.start()
        words = [word for key, value in shape.items() for word in ("--" + key, str(value))]
        subprocess.run([load, "ingest", ours.root, *words], stdout=subprocess.DEVNULL, check=True)
        names = [os.path.relpath(path, ours.root) for path in files_below(ours.root)]
        for _ in range(options.rounds):
            def again():
                empty.stop()
                empty.start()
            take(rates, "empty FUSE", binary, again, empty.root, names)
            for side, ring in (("/dev/fuse", "off"), ("io_uring", "on")):
                ours.mount_options = ["--replica", "--replica-dir", os.path.join(os.path.abspath(scratch), "replicas"), "--fuse-uring", ring]
                take(rates, side, binary, ours.remount, ours.root, names)
        print(f"{'':28}{'empty FUSE':>12}{'/dev/fuse':>12}{'ratio':>7}{'io_uring':>12}{'ratio':>7}")
        for what, processes in KINDS:
            for state in ("fresh", "kept"):
                base, *mine = (rates[what, processes, state, side] for side in ("empty FUSE", "/dev/fuse", "io_uring"))
                cells = "".join(f"{rate:12,.0f}{rate / base:7.2f}" for rate in mine)
                print(f"{f'{what}, {processes} processes, {state}':28}{base:12,.0f}{cells}")
    finally:
        empty.stop()
        ours.stop()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
