"""What scripts/test runs: the builds, and the suites with how they are called.

`make test` runs what gives the same result every time: fixed seeds, a few kills, each choice of mount options once.  With --all
come long runs, seeds of their own, hundreds of kills at random moments, crowds, and the mounts made in every way there is.
"""
import dataclasses
import itertools
import os

PLAIN, ASAN, TSAN = "build", "build-asan", "build-tsan"

# The ways to mount: the choices of each axis, with their options.  tests/lib/mounting.py has the words that are the tests' own.
AXES = (
    {"classic": "--fuse-uring=off", "ring": "--fuse-uring=auto"},
    # No cache; one that holds everything; and over TCP, where packs are cached, too, a small one.
    {"bare": "", "cache": "--cache-dir={cache} --cache-size=1GiB --cache-min-free=1MiB",
     "tcp": "--tcp --cache-dir={cache} --cache-size=32MiB --cache-min-free=1MiB"},
    {"unpassed": "--passthrough=off", "passed": "--passthrough=auto"},
    {"stored": "", "writeback": "--writeback={own}"},
)
# What `make test` mounts with, besides --fuse-uring=off alone: each choice is in one of them.
FEW_WAYS = ("ring-cache-passed-stored", "classic-cache-passed-writeback", "ring-tcp-unpassed-writeback")
LITTLE_ROOM = "--writeback={own} --writeback-size=64MiB --upload-limit=4MiB"
# What looks at the pages of the kernel needs a disk, whose pages can be absent.
COMPANY_PARTS = (("cache", 90, ("passthrough.", "cache.", "reading.")), ("network", 80, ("network.",)),
                 ("writing", 60, ("writeback.", "restart.")),
                 ("names", 80, ("checker.", "data.", "names.", "lock.", "relaxed.", "readonly.", "replica.", "linear.", "busy.", "clients.")))
FIXED_SEED = ["--seed", "20261119"]


@dataclasses.dataclass
class Suite:
    name: str
    command: list
    seconds: int                # about what it takes; the longest begin first, and parts are made by it
    build: str = PLAIN          # what must be built before; None: nothing
    on_disk: bool = False       # its data are on a real disk
    build_only: bool = False


def builder(folder, *options):
    script = f"[ -e {folder}/build.ninja ] && verb=configure || verb=setup; meson $verb {folder} -Dtests=true {' '.join(options)} && ninja -C {folder}"
    return Suite(folder, ["sh", "-c", script], 60, build=None, build_only=True)


# In this order.
BUILDS = [builder(PLAIN), builder(ASAN, "-Db_sanitize=address,undefined", "-Db_lundef=false"),
          builder(TSAN, "-Db_sanitize=thread", "-Db_lundef=false")]


def says_ok(command):
    return ["sh", "-c", f"{command} && echo '1 passed, 0 failed'"]


def programs(*more):
    """more: for the command line."""
    def unit(name, seconds, build, *options):
        return Suite(name, ["scripts/unit-tests", build, *options], seconds, build)

    def cli(kind, build):
        """In two parts, because they wait most of the time."""
        waiting = [f"test_{name}.py" for name in ("cache", "status_mount", "umount", "writeback")]
        others = sorted(name for name in os.listdir("tests/cli") if name.startswith("test_") and name not in waiting)
        for name, files in ((f"cli{kind}", others), (f"cli{kind}-mounts", waiting)):
            yield Suite(name, ["setarch", "-R", "tests/cli/run", build, *files, *more], 130, build, on_disk=True)

    return [
        Suite("docs", says_ok(f"scripts/cli-reference {PLAIN}/epochfs | diff -u docs/cli.md -"), 1),
        Suite("lint", says_ok(f"scripts/lint {PLAIN}"), 90),
        unit("unit", 60, PLAIN, "--no-suite", "torture"),
        # What asks which pages are in memory leaves that out where all always are.
        Suite("unit-on-disk", ["scripts/unit-tests", PLAIN, "cache/fill"], 5, on_disk=True),
        unit("unit-asan", 90, ASAN, "--no-suite", "torture", "--no-suite", "cost"),
        unit("unit-tsan", 120, TSAN, "--no-suite", "torture", "--no-suite", "cost"),
        # Under AddressSanitizer, because a leak is what a failed call leads to most easily.
        unit("torture", 120, ASAN, "--suite", "torture"),
        *cli("", PLAIN), *cli("-asan", ASAN), *cli("-tsan", TSAN),
    ]


def mounted(kind, way, options, seconds, *words, part=None, **more):
    """The suite of tests/KIND, or a part of it, with mounts that are made with these options."""
    name = "-".join(word for word in (kind, part, way) if word)
    # setarch: ThreadSanitizer needs it.
    command = ["setarch", "-R", f"tests/{kind}/run", more.get("build", PLAIN), f"--mount-options={options}", *words]
    return Suite(name, command, seconds, **more)


def every_way():
    """{name: options}.  What is passed through comes from the cache, so without one there is nothing to choose."""
    return {"-".join(names): " ".join(filter(None, (axis[name] for axis, name in zip(AXES, names))))
            for names in itertools.product(*AXES) if not {"bare", "passed"} <= set(names)}


def short_suites():
    yield from programs()
    yield Suite("fuzz", ["tests/fuzz/run"], 60, build=None)
    default = "--fuse-uring=off"
    yield mounted("posix", None, default, 40)
    yield mounted("random", None, default, 70, *FIXED_SEED)
    yield mounted("crash", None, default, 40, *FIXED_SEED, "--kills", "20", on_disk=True)
    for part, seconds, groups in COMPANY_PARTS:
        yield mounted("company", None, default, seconds, *FIXED_SEED, *groups, part=part, on_disk=part == "cache")
    # What the end of a program has freed must not be used: AddressSanitizer sees it.
    yield mounted("killed", None, default, 15, build=ASAN)
    ring, cached = FEW_WAYS[0], FEW_WAYS[1]
    yield mounted("crash", ring, every_way()[ring], 30, *FIXED_SEED, "--kills", "10", "kill.", on_disk=True)
    yield mounted("company", ring, every_way()[ring], 90, *FIXED_SEED, "names.", "lock.", "readonly.", "passthrough.", on_disk=True)
    yield mounted("company", cached, every_way()[cached], 30, *FIXED_SEED, "data.", "names.", "relaxed.")
    # With little room for what is not uploaded, and slowly, so that kills meet all of it: synced, being uploaded, full.
    yield mounted("crash", "writeback", LITTLE_ROOM, 30, *FIXED_SEED, "--kills", "10", "kill.", on_disk=True)
    for way in FEW_WAYS:
        options = every_way()[way]
        yield mounted("posix", way, options, 40)
        yield mounted("killed", way, options, 15, build=ASAN)
        yield mounted("random", way, options, 20, *FIXED_SEED, "--config", "64k", "--config", "two-mounts",
                      *(["--config", "large"] if "cache" in way else []))


def long_suites():
    yield from programs("--chance")
    yield Suite("fuzz", ["tests/fuzz/run", "--seconds", "120"], 700, build=None)
    long = {"posix": 60, "random": 700, "crash": 600, "company": 1800}
    for kind, seconds in long.items():
        yield mounted(kind, None, "--fuse-uring=off", seconds, "--long", on_disk=True)
    yield mounted("crash", "writeback", LITTLE_ROOM, 90, on_disk=True)
    for way, options in every_way().items():
        yield mounted("killed", way, options, 80, "--long", build=ASAN, on_disk=True)
        yield mounted("killed", way, options, 80, "--long", build=TSAN, on_disk=True, part="tsan")
    once = {"posix": 40, "random": 70, "crash": 90, "company": 400}
    for (way, options), kind in itertools.product(every_way().items(), once):
        yield mounted(kind, way, options, once[kind], *([] if kind == "random" else ["--chance"]), on_disk=True)


def suites(everything):
    return list(long_suites() if everything else short_suites())
