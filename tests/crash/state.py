"""What must be there after a crash: the names and contents of one folder, as far as its writer was told.

A writer notes each step before it takes it and again when it has been acknowledged.  Replaying the notes
gives two states: what was acknowledged, and that plus the one step that may have been under way.  What is
found after the crash must be one of them, and each file a prefix of what was written to it, at least as
long as fsync promised.

A mount that is killed may take the files with it that were just made and not synced, but only the last ones:
whatever else changes names, and fsync, makes those before it last."""
import copy
import json
import os
import stat

import units

READ_SIZE = 1 << 20


class Wrong(Exception):
    """Something is there that must not be, or is not there that must."""


class File:
    """A file written in sequence from its beginning."""

    def __init__(self, file):
        self.file, self.written, self.synced = file, 0, 0


class State:
    """nodes: path below the folder -> "dir", a File (several paths may share one), or ("link", target)."""

    def __init__(self):
        self.nodes = {}
        self.next_file = 1

    # -- one method for each step a writer can note

    def apply(self, step):
        getattr(self, f"do_{step[0]}")(*step[1:])

    def do_create(self, path, file):
        self.nodes[path] = File(file)
        self.next_file = max(self.next_file, file + 1)

    def do_write(self, path, length):
        self.nodes[path].written += length

    def do_fsync(self, path):
        self.nodes[path].synced = self.nodes[path].written

    def do_fsync_all(self):
        """The fsync of a directory syncs whatever its mount has."""
        for node in self.nodes.values():
            self._stored(node)

    def do_mkdir(self, path):
        self.nodes[path] = "dir"

    def do_symlink(self, path, target):
        self.nodes[path] = ("link", target)

    def do_remove(self, path):
        del self.nodes[path]

    def do_link(self, path, new):
        """Stores the file first, as rename does."""
        self._stored(self.nodes[path])
        self.nodes[new] = self.nodes[path]

    def do_rename(self, path, new):
        node = self.nodes[path]
        self._stored(node)
        if isinstance(node, File) and self.nodes.get(new) is node:
            return          # two names of one file: nothing happens
        below = [name for name in self.nodes if name.startswith(path + "/")]
        self.nodes[new] = self.nodes.pop(path)
        for name in below:
            self.nodes[new + name[len(path):]] = self.nodes.pop(name)

    @staticmethod
    def _stored(node):
        if isinstance(node, File):
            node.synced = node.written

    # -- comparing

    def kinds(self):
        return {path: node if isinstance(node, (str, tuple)) else "file" for path, node in self.nodes.items()}


def without(state, paths):
    """As if the files at the paths had never been made."""
    less = copy.deepcopy(state)
    for path in paths:
        del less.nodes[path]
    return less


def read_notes(journal, state):
    """(acknowledged, acknowledged and the step under way, which step that was, files made since something made
    all before it last); the first two are the same if nothing was under way."""
    done, pending, recent = copy.deepcopy(state), None, []
    with open(journal, "rb") as f:
        for line in f:
            if not line.endswith(b"\n"):
                break
            note = json.loads(line)
            if note is None:
                done.apply(pending)
                if pending[0] == "create":
                    recent.append(pending[1])
                elif pending[0] != "write":
                    recent = []
                pending = None
            else:
                pending = note
    perhaps = copy.deepcopy(done)
    if pending is not None:
        perhaps.apply(pending)
    return done, perhaps, pending, recent


def found_kinds(folder):
    """What is there: path -> "dir", "file" or ("link", target)."""
    kinds, pending = {}, [""]
    while pending:
        above = pending.pop()
        for entry in os.scandir(os.path.join(folder, above)):
            path = f"{above}/{entry.name}" if above else entry.name
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                kinds[path] = "dir"
                pending.append(path)
            elif stat.S_ISLNK(mode):
                kinds[path] = ("link", os.readlink(entry.path))
            else:
                kinds[path] = "file"
    return kinds


def read_file(path):
    with open(path, "rb", buffering=0) as f:
        parts = []
        while part := f.read(READ_SIZE):
            parts.append(part)
        return b"".join(parts)


def check_files(folder, state, perhaps, exact):
    """Each file of `state` is a prefix of what was written.  perhaps: a write under way may have added to it."""
    longest = {node.file: node.written for node in perhaps.nodes.values() if isinstance(node, File)}
    lengths = {}
    for path, node in state.nodes.items():
        if not isinstance(node, File):
            continue
        data = read_file(os.path.join(folder, path))
        size = os.stat(os.path.join(folder, path)).st_size
        least = node.written if exact else node.synced
        most = max(node.written, longest.get(node.file, 0))
        if size != len(data):
            raise Wrong(f"{path}: its size is {size}, but {len(data)} bytes can be read")
        if not least <= len(data) <= most:
            promise = "were written" if exact else "were acknowledged by fsync, rename or link"
            raise Wrong(f"{path} (file {node.file}): {len(data)} bytes are there, {least} {promise}, {most} were written")
        problem = units.difference(data, node.file)
        if problem:
            raise Wrong(f"{path} (file {node.file}, {len(data)} bytes of {node.written}): {problem}")
        lengths[node.file] = len(data)
    return lengths


def check(folder, journal, before, exact=False):
    """Compares a folder with what its writer noted since `before`; returns the state to go on from.

    exact: nothing may be missing, not even what was never synced (the mount lived on)."""
    done, perhaps, pending, recent = read_notes(journal, before)
    kinds = found_kinds(folder)
    possible = [done, perhaps]
    if not exact:
        possible += [without(done, recent[first:]) for first in range(len(recent))]
    states = [s for s in possible if s.kinds() == kinds]
    if not states:
        want = done.kinds()
        lines = [f"{p} should be {want.get(p, 'gone')}, is {kinds.get(p, 'gone')}" for p in sorted(want.keys() | kinds.keys())
                 if want.get(p) != kinds.get(p)]
        raise Wrong(f"names: {'; '.join(lines[:8])} (under way: {pending})")
    errors = []
    for state in states:    # a file that was renamed over another, and one that was never made, leave the same names
        try:
            lengths = check_files(folder, state, perhaps, exact)
        except Wrong as error:
            errors.append(str(error))
            continue
        for node in state.nodes.values():
            if isinstance(node, File):
                node.written = node.synced = lengths[node.file]
        return state
    raise Wrong(f"{'; or '.join(errors)} (under way: {pending})")
