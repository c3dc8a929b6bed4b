"""The workloads of training jobs: image folders, shards, mapped tables, checkpoints, accelerators.

Each in three states: cold (the client has nothing: cache directory emptied, page cache
dropped, server and mount started anew), warm from disk (page cache dropped and mount
started anew, cache directory kept) and hot (again at once).  A plain folder knows cold and hot
only; its cold figures are what both others are compared with.

Options of the mount that this build does not know are left out where the row can be
measured without, and the row is marked as not built, whatever its figure.
"""
import os
import shutil
import subprocess
import time

from sides import EpochFS, Yardstick, folder_bytes

GIB = 1 << 30
MIB = 1 << 20

# Half to one and a half of the mean: 115 KB, as the images of ImageNet have.
IMAGES = {"files": 20000, "folders": 100, "size": 115000}
IMAGE_BYTES = IMAGES["files"] * IMAGES["size"]
SHARDS = {"files": 16, "size": 128 * MIB}
TABLE = {"files": 1, "size": GIB}
CHECKPOINT = {"processes": 2, "size": 512 * MIB}
READERS = 4
SHOW_EVERY_S = 30                                # a line of the soak
CACHE_BYTES = 16 * GIB                           # everything fits

# ResNet-50 on an H100: 1,786 samples a second, in batches of 400.
H100 = {"accelerators": 2, "workers": 2, "batch": 400, "batch-us": 400 * 1000000 // 1786}

UTILISATION = ">= 0.90"                          # a target of its own, not a ratio

COLD, WARM, HOT = "cold", "warm from disk", "hot"
# A round of each side.  What is hot takes little time, and is easily disturbed.
OURS = (COLD, WARM, HOT, HOT, HOT)
THEIRS = (COLD, HOT, HOT, HOT)
CLASSIC, URING = "classic", "io_uring"
TRANSPORTS = (CLASSIC, URING)
PASSING = ("off", "on")                          # --passthrough


class Mount:
    """Options of a mount, and which of those wanted this build does not have.

    It is mounted over TCP, as a training node does: on the server's own host packs are read from the server's files and not
    cached.  `local`: over the unix socket."""

    def __init__(self, side, read_only=False, transport=CLASSIC, cache=CACHE_BYTES, writeback=False, replica=False, passing=None,
                 local=False):
        self.read_only, self.transport, self.passing, self.local = read_only, transport, passing, local
        self.words, self.missing = [], []
        wanted = [(read_only or replica, "--ro", []), (writeback, "--writeback", [side.writeback]),
                  (replica, "--replica", ["--replica-dir", side.replica]),
                  (transport == URING, "--fuse-uring", ["on"]), (passing, "--passthrough", [passing]),
                  (cache, "--cache-dir", [side.cache, "--cache-size", str(cache)])]
        for needed, option, values in wanted:
            if needed and side.has(option):
                self.words += [option, *values]
            elif needed:
                self.missing.append(option)
        if transport == CLASSIC and side.has("--fuse-uring"):
            self.words += ["--fuse-uring", "off"]
        self.possible = (transport == CLASSIC or "--fuse-uring" not in self.missing) and "--passthrough" not in self.missing

    def use(self, side):
        """From the next mount on."""
        if self.transport == URING:
            side.allow_uring()
        side.mount_options = self.words
        side.mount_address = side.address if self.local else side.tcp_address

    def lacks(self, state):
        """What is not built of what this state is about: nothing is warm from disk without a cache."""
        return [option for option in self.missing if option != "--cache-dir" or state == WARM]


class Series:
    """All rounds of one row, by side."""

    def __init__(self):
        self.rounds, self.cpu = {}, {}

    def take(self, side, figure, cpu=None):
        self.rounds.setdefault(side, []).append(figure)
        if cpu is not None:
            self.cpu.setdefault(side, []).append(cpu)

    def best(self, better=max):
        return {side: better(figures) for side, figures in self.rounds.items()}


class Training:
    def __init__(self, bench, rounds):
        self.bench, self.rounds = bench, rounds
        self.plain, self.epochfs = bench.plain, bench.epochfs
        self.series = {}
        self.seed = 0
        self.made = set()

    # ---- Measuring ----

    def load(self, side, workload, folder, figure="rate", into=(), **options):
        """Runs it, adds its figure and CPU time per GiB to the series named by `into`; all it told."""
        self.seed += 1
        before = side.cpu()
        done = self.bench.load(side, workload, folder, seed=self.seed, **options)
        done["all_cpu_seconds"] = done["cpu_seconds"] + side.cpu() - before
        per_gib = done["all_cpu_seconds"] / (done["bytes"] / GIB) if done["bytes"] else None
        for name in into:
            self.series.setdefault(name, Series()).take(side.name, done[figure], per_gib)
        return done

    def in_state(self, side, state, large=False):
        """Large files are read so fast that getting memory would count."""
        if state == HOT:
            return
        if state == COLD:
            side.cold()
        else:
            side.warm_from_disk()
        if large:
            self.bench.memory_ready()

    def wanted(self, *names):
        return self.bench.only == "training" or any(self.bench.wanted(name) for name in names)

    def rate(self, name, unit, ext4=None, target=None, missing=(), better=max):
        """A row: the best round of the series of that name against ext4's, which may be of another series."""
        series = self.series.get(name, Series())
        against = self.series.get(ext4 or name, Series())
        reference = better(against.rounds["ext4"]) if "ext4" in against.rounds else None
        figures = series.rounds.get("epochfs")
        self.bench.training_row(name, unit, reference, better(figures) if figures else None, target, missing,
                                {"ext4": against.rounds.get("ext4"), "epochfs": figures})

    def cpu(self, name, ext4=None):
        """The row of CPU seconds per GiB that belongs to a row of rates."""
        ours = self.series.get(name, Series()).cpu.get("epochfs")
        theirs = self.series.get(ext4 or name, Series()).cpu.get("ext4")
        if ours and theirs and self.wanted(name, "CPU"):
            self.bench.training_row(f"{name}: CPU per GiB", "s", min(theirs), min(ours), None, (), {"ext4": theirs, "epochfs": ours})

    def folder(self, name, workload, **options):
        """A data set, made once on both sides."""
        if name in self.made:
            return
        self.writable()
        for side in (self.plain, self.epochfs):
            os.makedirs(os.path.join(side.root, name))
            self.bench.load(side, workload, name, **options)
            side.settle()
        self.made.add(name)

    def writable(self):
        """The plain mount, in which data sets are made."""
        Mount(self.epochfs, local=True).use(self.epochfs)
        self.epochfs.remount()

    # ---- The image folder ----

    def images(self):
        self.folder("images", "ingest", processes=READERS, **IMAGES)

    def ingest(self):
        name, durable = "image ingest, fsync of every folder, 4 processes", "the same, and all data on disk"
        if not self.wanted(name):
            return
        self.writable()
        for i in range(self.rounds):
            for side in (self.plain, self.epochfs):
                folder = "images" if i == self.rounds - 1 and "images" not in self.made else f"ingest.{i}"
                os.makedirs(os.path.join(side.root, folder))
                self.bench.memory_ready()
                done = self.load(side, "ingest", folder, into=[name], processes=READERS, **IMAGES)
                began = time.monotonic()
                subprocess.run(["sync", "-f", self.plain.root], check=True)
                seconds = done["seconds"] + time.monotonic() - began
                self.series.setdefault(durable, Series()).take(side.name, done["count"] / seconds)
        self.made.add("images")
        self.rate(name, "files/s", target=0.40)
        self.rate(durable, "files/s")
        self.cpu(name)

    @staticmethod
    def epoch_name(state, mount):
        where = ", unix socket" if mount.local else ""
        return f"image epoch, {state}, {'read-only' if mount.read_only else 'writable'}, {mount.transport}{where}"

    @staticmethod
    def epoch_states(mount):
        """What is cold is so in either kind of mount.  On the server's host there is nothing on the client's disk."""
        return (COLD,) if mount.local else (WARM, HOT) if mount.read_only else (COLD, WARM, HOT)

    @staticmethod
    def epochs_of_ext4(mount):
        return (COLD,) if mount.local else THEIRS

    def epochs(self):
        mounts = [Mount(self.epochfs, read_only=ro, transport=t) for ro in (False, True) for t in TRANSPORTS]
        mounts += [Mount(self.epochfs, transport=t, local=True) for t in TRANSPORTS]
        targets = {(COLD, CLASSIC): 0.50, (COLD, URING): 0.50, (WARM, CLASSIC): 0.55, (WARM, URING): 0.70}
        hot = {(False, CLASSIC): 0.35, (False, URING): 0.55, (True, CLASSIC): 0.50, (True, URING): 0.75}
        mounts = [m for m in mounts if self.wanted(*(self.epoch_name(s, m) for s in self.epoch_states(m)))]
        if not mounts:
            return
        self.images()
        if mounts[0].read_only and not mounts[0].missing:        # no cold epoch comes before it that fills the cache
            mounts[0].use(self.epochfs)
            self.epochfs.cold()
            self.load(self.epochfs, "epoch", "images", processes=READERS, **IMAGES)
        for _ in range(self.rounds):
            for mount in mounts:
                if mount.possible:
                    self.epoch_round(mount)
        for mount in mounts:
            for state in self.epoch_states(mount):
                name = self.epoch_name(state, mount)
                target = hot[mount.read_only, mount.transport] if state == HOT else targets[state, mount.transport]
                ext4 = self.epoch_name(HOT if state == HOT else COLD, mount)
                if self.wanted(name):
                    self.rate(name, "files/s", ext4, target, mount.lacks(state))
                    self.cpu(name, ext4)

    def epoch_round(self, mount):
        """Each mount is compared with rounds of ext4 of its own: the best of many is better than the best of few."""
        options = {"processes": READERS, **IMAGES}
        mount.use(self.epochfs)
        ours = [state for state in OURS if state in self.epoch_states(mount)]
        for side in (self.plain, self.epochfs):
            for state in ours if side is self.epochfs else self.epochs_of_ext4(mount):
                self.in_state(side, state)
                self.load(side, "epoch", "images", into=[self.epoch_name(state, mount)], **options)

    def names(self):
        """Walking and random traversal of the image folder."""
        rows = (("image walk with attributes", "walk", {}),
                ("image traversal (stat, open, close), 4 processes", "traverse", {"processes": READERS, **IMAGES}))
        rows = [row for row in rows if self.wanted(*(f"{row[0]}, {state}" for state in (COLD, WARM, HOT)))]
        if not rows:
            return
        self.images()
        mount = Mount(self.epochfs)
        mount.use(self.epochfs)
        for _ in range(self.rounds):
            for name, workload, options in rows:
                for side in (self.plain, self.epochfs):
                    for state in OURS if side is self.epochfs else THEIRS:
                        self.in_state(side, state)
                        self.load(side, workload, "images", into=[f"{name}, {state}"], **options)
        for name, _, _ in rows:
            for state in (COLD, WARM, HOT):
                self.rate(f"{name}, {state}", "files/s", ext4=f"{name}, {HOT if state == HOT else COLD}", missing=mount.lacks(state))

    def costs(self):
        """Bytes of a name and of a cached file: what a mount grows by when it meets all of them."""
        known, opened = "memory of the mount per image whose name is known", "memory of the mount per image opened"
        on_disk = "cache directory beyond the data, per image"
        if not self.wanted(known, opened, on_disk):
            return
        self.images()
        side, mount = self.epochfs, Mount(self.epochfs)
        mount.use(side)
        side.cold()
        data = self.load(side, "epoch", "images", processes=READERS, **IMAGES)["bytes"]
        side.warm_from_disk()
        over = (folder_bytes(side.cache) - data) / IMAGES["files"]
        sizes = [EpochFS.memory(side.mount_process, "RssAnon")]
        for workload, options in (("walk", {}), ("traverse", {"processes": READERS, **IMAGES})):
            self.load(side, workload, "images", **options)
            sizes.append(EpochFS.memory(side.mount_process, "RssAnon"))
        for name, after in ((known, sizes[1]), (opened, sizes[2])):
            self.bench.training_row(name, "bytes", None, (after - sizes[0]) / IMAGES["files"], None, (), None)
        self.bench.training_row(on_disk, "bytes", None, None if mount.missing else over, None, mount.missing, None)

    def hit_rate(self):
        """A cache that holds 60 % of the images.  All that comes over the mount's TCP connections is counted."""
        name, traffic = "image epoch, cache of 60 %: hit rate", "image epoch over TCP, cold: bytes received per byte read"
        if not self.wanted(name, traffic) or not shutil.which("ss"):
            return
        self.images()
        side, mount = self.epochfs, Mount(self.epochfs, cache=IMAGE_BYTES * 6 // 10)
        mount.use(side)
        side.cold()
        shares = []
        for _ in range(1 if mount.missing else 1 + self.rounds):
            before = side.received()
            done = self.load(side, "epoch", "images", processes=READERS, **IMAGES)
            shares.append((side.received() - before) / done["bytes"])
            side.warm_from_disk()                # what the kernel keeps is not the cache's merit
        self.bench.training_row(traffic, "x", None, shares[0], None, (), {"epochfs": shares[:1]})
        hits = [max(0.0, 1 - share) for share in shares[1:]]
        self.bench.training_row(name, "", None, max(hits) if hits else None, None, mount.missing, {"epochfs": hits})

    # ---- Large files ----

    def shards(self):
        passing = PASSING if self.epochfs.has("--passthrough") else (None, "on")
        mounts = [Mount(self.epochfs, transport=t, passing=p) for t in TRANSPORTS for p in passing]
        mounts += [Mount(self.epochfs, transport=t, cache=None, local=True) for t in TRANSPORTS]
        targets = {COLD: 0.60, WARM: 0.90, HOT: 0.95}

        def name_of(state, mount):
            how = ", unix socket, no cache" if mount.local else ", passthrough" if mount.passing == "on" else ""
            return f"shard epoch, {state}, 4 processes, {mount.transport}{how}"
        mounts = [m for m in mounts if self.wanted(*(name_of(s, m) for s in targets))]
        if not mounts:
            return
        self.folder("shards", "shards-write", processes=READERS, **SHARDS)
        for _ in range(self.rounds):
            for mount in mounts:
                if not mount.possible:
                    continue
                mount.use(self.epochfs)
                for side in (self.plain, self.epochfs):
                    for state in self.epochs_of_ext4(mount) if side is self.plain else (COLD,) if mount.local else OURS:
                        self.in_state(side, state, large=True)
                        self.load(side, "shards", "shards", "mib_per_second", [name_of(state, mount)], processes=READERS, **SHARDS)
        for mount in mounts:
            for state, target in targets.items():
                if (mount.passing == "on" and state == COLD) or (mount.local and state != COLD):
                    continue                     # nothing is passed through that is not there yet, and without a cache all is cold
                name, ext4 = name_of(state, mount), name_of(HOT if state == HOT else COLD, mount)
                if self.wanted(name):
                    self.rate(name, "MiB/s", ext4, target, mount.lacks(state))
                    self.cpu(name, ext4)

    def shards_again(self):
        """Three epochs in a row with an empty cache at first: from the second on everything is to come from memory."""
        rows = {readers: [f"shards again, {which} epoch, {readers} {'process' if readers == 1 else 'processes'}"
                          for which in ("first", "second", "third")] for readers in (1, READERS)}
        rows = {readers: names for readers, names in rows.items() if self.wanted(*names)}
        mount = Mount(self.epochfs, passing="on" if self.epochfs.has("--passthrough") else None)
        if not rows:
            return
        self.folder("shards", "shards-write", processes=READERS, **SHARDS)
        mount.use(self.epochfs)
        for _ in range(self.rounds):
            for readers, names in rows.items():
                for side in (self.plain, self.epochfs):
                    self.in_state(side, COLD, large=True)
                    for name in names:
                        self.load(side, "shards", "shards", "mib_per_second", [name], processes=readers, **SHARDS)
        for first, second, third in rows.values():
            for name in (first, second, third):
                self.rate(name, "MiB/s", missing=mount.missing)
                self.cpu(name)
            again, settled = (self.series.get(name, Series()).rounds.get("epochfs") for name in (second, third))
            if again and settled:
                self.bench.training_row(f"{second}, of the third", "MiB/s", max(settled), max(again), 0.80, mount.missing,
                                        {"third": settled, "epochfs": again}, against="third")

    def mapped(self):
        """A table of a GiB, as Arrow maps them."""
        mount = Mount(self.epochfs, passing="on" if self.epochfs.has("--passthrough") else None)
        rows = [(f"mmap, random rows of {block >> 10} KiB{', MADV_RANDOM' if advise else ''}",
                 {"block": block, "count": count, "processes": READERS, "size": GIB, **({"advise-random": True} if advise else {})})
                for block, count in ((4096, 8000), (65536, 3000)) for advise in (False, True)]
        rows = [row for row in rows if self.wanted(*(f"{row[0]}, {state}" for state in (COLD, WARM, HOT)))]
        if not rows:
            return
        self.folder("table", "shards-write", **TABLE)
        mount.use(self.epochfs)
        for _ in range(self.rounds):
            for name, options in rows:
                for side in (self.plain, self.epochfs):
                    for state in (COLD, WARM, HOT, HOT, HOT) if side is self.epochfs else (COLD, HOT, HOT, HOT):
                        self.in_state(side, state)
                        if state == HOT:         # the same rows again, or they would be cold ones
                            self.seed -= 1
                        self.load(side, "mmap", "table", into=[f"{name}, {state}"], **options)
                        if state == COLD and side is self.epochfs and not mount.missing:
                            self.load(side, "shards", "table", **TABLE)          # so that all of it is in the cache
        for name, _ in rows:
            for state, target in ((COLD, None), (WARM, 0.85), (HOT, None)):
                self.rate(f"{name}, {state}", "rows/s", f"{name}, {HOT if state == HOT else COLD}", target, mount.lacks(state))

    def checkpoints(self):
        """Two ranks write half a GiB each, over their last checkpoint."""
        server, local = "checkpoint of 2 x 512 MiB to the server", "checkpoint of 2 x 512 MiB, write-back"
        back, cold, warm = (f"checkpoint read back, {state}" for state in (HOT, COLD, WARM))
        if not self.wanted(server, local, back, cold, warm):
            return
        mounts = {server: Mount(self.epochfs, local=True), local: Mount(self.epochfs, writeback=True, local=True)}
        self.writable()
        for side in (self.plain, self.epochfs):
            os.makedirs(os.path.join(side.root, "checkpoints"))
        for _ in range(self.rounds + 1):
            for name, mount in mounts.items():
                if "--writeback" in mount.missing:
                    continue
                mount.use(self.epochfs)
                self.epochfs.remount()
                for side in (self.plain, self.epochfs):
                    self.bench.memory_ready()
                    self.load(side, "checkpoint", "checkpoints", "mib_per_second", [name], **CHECKPOINT)
                    self.load(side, "checkpoint-read", "checkpoints", "mib_per_second", [back], **CHECKPOINT)
                    side.settle()
        Mount(self.epochfs).use(self.epochfs)
        for _ in range(self.rounds):
            for side, name, state in ((self.plain, cold, COLD), (self.epochfs, cold, COLD), (self.epochfs, warm, WARM)):
                self.in_state(side, state, large=True)
                self.load(side, "checkpoint-read", "checkpoints", "mib_per_second", [name], verify=True, **CHECKPOINT)
        self.rate(server, "MiB/s", target=0.60)
        self.rate(local, "MiB/s", target=0.80, missing=[o for o in mounts[local].missing if o == "--writeback"])
        self.rate(back, "MiB/s")
        self.rate(cold, "MiB/s")
        self.rate(warm, "MiB/s", ext4=cold)
        self.cpu(server)

    # ---- Accelerators, and the empty file system ----

    def accelerators(self):
        """Two H100s that train on the image folder."""
        mount = Mount(self.epochfs, read_only=True, transport=URING)
        if not mount.possible:
            mount = Mount(self.epochfs, read_only=True)

        def name_of(state):
            return f"2 emulated H100s, utilisation, {state}, {mount.transport}"
        if not self.wanted(*(name_of(state) for state in (COLD, WARM, HOT))):
            return
        self.images()
        mount.use(self.epochfs)
        waits = {}
        for side in (self.plain, self.epochfs):
            for state in (COLD, WARM, HOT) if side is self.epochfs else (COLD, HOT):
                self.in_state(side, state)
                done = self.load(side, "accelerate", "images", "utilisation", [name_of(state)], **IMAGES, **H100)
                waits[side.name, state] = done["first_batch_seconds"]
        for state in (COLD, WARM, HOT):
            ext4 = HOT if state == HOT else COLD
            self.rate(name_of(state), "", name_of(ext4), missing=mount.lacks(state), target=UTILISATION)
        self.bench.training_row("wait for the first batch, cold", "s", waits["ext4", COLD], waits["epochfs", COLD], None, (), None)

    def replica(self):
        """Names of a mount that has all of them at hand, against what FUSE itself takes.  Every name once, in a fresh mount."""
        name, always = "random stat and open, replica, 4 processes", "empty FUSE, names and attributes asked for each time"
        if not self.wanted(name, always):
            return
        self.images()
        mount = Mount(self.epochfs, replica=True)
        mount.use(self.epochfs)
        options = {"processes": READERS, **IMAGES}
        yardsticks = {timeout: Yardstick(self.bench.scratch, IMAGES, timeout) for timeout in (3600, 0)}
        ours, empty = [], {3600: [], 0: []}
        for _ in range(self.rounds):
            for timeout, yardstick in yardsticks.items():
                try:
                    yardstick.start()
                    empty[timeout].append(self.load(yardstick, "traverse", "", **options)["rate"])
                finally:
                    yardstick.stop()
            self.epochfs.remount()
            ours.append(self.load(self.epochfs, "traverse", "images", **options)["rate"])
        missing = [option for option in mount.missing if option == "--replica"]
        self.bench.training_row(name, "files/s", max(empty[3600]), max(ours), 0.9, missing, {"empty FUSE": empty[3600], "epochfs": ours},
                                against="empty FUSE")
        self.bench.training_row(always, "files/s", max(empty[0]), None, None, (), {"empty FUSE": empty[0]}, against="empty FUSE")

    def run(self):
        for group in (self.ingest, self.epochs, self.names, self.costs, self.hit_rate, self.shards, self.shards_again, self.mapped,
                      self.checkpoints, self.accelerators, self.replica):
            group()


class Soak:
    """Epochs, checkpoints and new files for a long time: nothing may grow."""
    CACHE = 2560 * MIB  # little more than the images: it is full after some minutes, and then may not grow
    CHECKPOINT = {"processes": 2, "size": 32 * MIB}
    SCRATCH = {"files": 500, "folders": 5, "size": IMAGES["size"]}

    def __init__(self, training, minutes):
        self.training, self.bench, self.side = training, training.bench, training.epochfs
        self.seconds = minutes * 60
        self.shown = -SHOW_EVERY_S
        self.samples = []

    def turn(self):
        t, side = self.training, self.side
        t.load(side, "epoch", "images", processes=READERS, **IMAGES)
        t.load(side, "checkpoint", "checkpoints", **self.CHECKPOINT)
        t.load(side, "checkpoint-read", "checkpoints", verify=True, **self.CHECKPOINT)
        t.load(side, "ingest", "scratch", processes=READERS, **self.SCRATCH)
        t.load(side, "traverse", "images", processes=READERS, **IMAGES)
        t.load(side, "delete", "scratch", processes=READERS, **self.SCRATCH)

    def sample(self, began):
        side = self.side
        self.samples.append({
            "seconds": time.monotonic() - began,
            "memory of the mount": EpochFS.memory(side.mount_process, "RssAnon") / MIB,
            "memory of the server": EpochFS.memory(side.server, "RssAnon") / MIB,
            "descriptors of the mount": len(os.listdir(f"/proc/{side.mount_process.pid}/fd")),
            "descriptors of the server": len(os.listdir(f"/proc/{side.server.pid}/fd")),
            "threads of the mount": len(os.listdir(f"/proc/{side.mount_process.pid}/task")),
            "threads of the server": len(os.listdir(f"/proc/{side.server.pid}/task")),
            "metadata": os.stat(os.path.join(side.data, "meta", "data.mdb")).st_size / MIB,
            "cache directory": folder_bytes(side.cache) / MIB,
        })
        if self.samples[-1]["seconds"] >= self.shown + SHOW_EVERY_S:
            self.shown = self.samples[-1]["seconds"]
            print(", ".join(f"{key} {value:.0f}" for key, value in self.samples[-1].items()), flush=True)

    def run(self):
        """The median of the last quarter against that of the second: the first fills what may be filled."""
        retention = self.side.cli("volume", "set", "bench", "--retention", "0")
        if retention.returncode:
            raise RuntimeError("cannot set the retention: " + retention.stdout)
        self.training.images()
        mount = Mount(self.side, transport=URING, cache=self.CACHE)
        (mount if mount.possible else Mount(self.side, cache=self.CACHE)).use(self.side)
        self.side.remount()
        for folder in ("checkpoints", "scratch"):
            os.makedirs(os.path.join(self.side.root, folder), exist_ok=True)
        began = time.monotonic()
        while time.monotonic() - began < self.seconds or len(self.samples) < 8:
            self.turn()
            self.sample(began)
        quarter = len(self.samples) // 4
        for key in self.samples[0]:
            if key == "seconds":
                continue
            early = sorted(s[key] for s in self.samples[quarter:2 * quarter])[quarter // 2]
            late = sorted(s[key] for s in self.samples[-quarter:])[quarter // 2]
            # 5 %, and 2 MiB or 16 of others: the give and take of allocators and pools.
            counted = "descriptors" in key or "threads" in key
            # The cache may fill what it was given, however long that takes.
            grown = late > self.CACHE / MIB if key == "cache directory" else late > early * 1.05 + (16 if counted else 2)
            self.bench.row(f"soak of {self.seconds / 60:.0f} minutes: {key}, late against early", "" if counted else "MiB", early, late,
                           "no growth", not grown, rounds={"epochfs": [round(s[key], 1) for s in self.samples]})
