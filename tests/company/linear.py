"""Is a history of concurrent operations on a few names linearizable?

A history is a list of operations, each with the time it was called and the time it returned (of one clock) and
what it returned.  It is linearizable if there is an order in which one after another could have returned just that,
and in which no operation comes before another that had returned before it was called.  The search is that of Wing and
Gong with Lowe's memory: a set of operations that leads to a state that was reached by the same set before is not tried
again.

The operations are those that a file system does in one piece.  rename and stat by name are not quite: the kernel
looks the name up, and a moment later asks for the attributes of what it found, or compares it with the target.
If no order is found with both moments in one, they are taken apart (see _apart), because no file system under Linux
promises more.

    operation               result
    create NAME             ok INODE, EEXIST                open(O_CREAT | O_EXCL)
    open NAME               ok INODE, ENOENT
    unlink NAME             ok, ENOENT
    rename OLD NEW          ok, ENOENT
    exchange OLD NEW        ok, ENOENT
    link INODE NEW          ok, EEXIST, ENOENT              of an open file; ENOENT: it has no name left
    stat NAME               ok INODE LINKS SIZE, ENOENT
    fstat INODE             ok LINKS SIZE
    append INODE TOKEN      ok
    read INODE              ok [TOKEN ...]
    list                    ok [NAME ...]                   when nothing else is under way
    lock WHAT MODE          ok, EAGAIN                      MODE: shared, exclusive
    wait WHAT MODE          ok                              the same, until it is free
    unlock WHAT             ok

    linear.py [FILE]        checks a history printed by a failed test: a line of JSON for each operation
"""
import collections
import json
import sys

NODES_MAX = 300_000

Op = collections.namedtuple("Op", "process verb args result called returned after", defaults=(None,))
State = collections.namedtuple("State", "names files locks noted", defaults=((), (), (), ()))
# names: sorted (name, inode).  files: sorted (inode, tokens).  locks: sorted (what, mode, holders).
# noted: (process, inode) seen by the first half of a rename that was taken apart.


class Undecided(Exception):
    """The search took too long."""


def _set(pairs, key, value):
    """A sorted tuple of pairs with one of them replaced; removed if the value is None."""
    rest = [p for p in pairs if p[0] != key]
    return tuple(sorted(rest + ([(key, value)] if value is not None else [])))


def _get(pairs, key):
    return next((p[1] for p in pairs if p[0] == key), None)


def _tokens(state, inode):
    return _get(state.files, inode) or ()


def _links(state, inode):
    return sum(1 for _, i in state.names if i == inode)


# Each verb: (state, operation) -> the state after it, or None if it could not have returned what it did.

def _create(state, op):
    name = op.args[0]
    there = _get(state.names, name)
    if op.result[0] == "EEXIST":
        return state if there is not None else None
    if op.result[0] != "ok" or there is not None:
        return None
    inode = op.result[1]
    if _links(state, inode):
        return None
    return state._replace(names=_set(state.names, name, inode), files=_set(state.files, inode, ()))


def _open(state, op):
    there = _get(state.names, op.args[0])
    if op.result[0] == "ENOENT":
        return state if there is None else None
    return state if op.result[0] == "ok" and there == op.result[1] else None


def _unlink(state, op):
    there = _get(state.names, op.args[0])
    if op.result[0] == "ENOENT":
        return state if there is None else None
    if op.result[0] != "ok" or there is None:
        return None
    return state._replace(names=_set(state.names, op.args[0], None))


def _rename(state, op):
    old, new = op.args
    there = _get(state.names, old)
    if op.result[0] == "ENOENT":
        return state if there is None else None
    if op.result[0] != "ok" or there is None:
        return None
    if _get(state.names, new) == there:
        return state            # two names of one file, or a name to itself: nothing happens
    return state._replace(names=_set(_set(state.names, old, None), new, there))


def _exchange(state, op):
    old, new = op.args
    first, second = _get(state.names, old), _get(state.names, new)
    if op.result[0] == "ENOENT":
        return state if first is None or second is None else None
    if op.result[0] != "ok" or first is None or second is None:
        return None
    return state._replace(names=_set(_set(state.names, old, second), new, first))


def _link(state, op):
    inode, new = op.args
    there = _get(state.names, new)
    if op.result[0] == "EEXIST":
        return state if there is not None else None
    if op.result[0] == "ENOENT":
        return state if not _links(state, inode) else None
    if op.result[0] != "ok" or there is not None or not _links(state, inode):
        return None
    return state._replace(names=_set(state.names, new, inode))


def _stat(state, op):
    there = _get(state.names, op.args[0])
    if op.result[0] == "ENOENT":
        return state if there is None else None
    if op.result[0] != "ok" or there != op.result[1]:
        return None
    return state if list(op.result[2:]) == [_links(state, there), len(_tokens(state, there))] else None


def _fstat(state, op):
    inode = op.args[0]
    return state if list(op.result) == ["ok", _links(state, inode), len(_tokens(state, inode))] else None


def _append(state, op):
    inode, token = op.args
    if op.result[0] != "ok":
        return None
    return state._replace(files=_set(state.files, inode, _tokens(state, inode) + (token,)))


def _read(state, op):
    return state if op.result[0] == "ok" and tuple(op.result[1]) == _tokens(state, op.args[0]) else None


def _list(state, op):
    return state if op.result[0] == "ok" and list(op.result[1]) == [name for name, _ in state.names] else None


def _holders(state, what):
    return next(((mode, holders) for w, mode, holders in state.locks if w == what), (None, ()))


def _with_holders(state, what, mode, holders):
    rest = [lock for lock in state.locks if lock[0] != what]
    return state._replace(locks=tuple(sorted(rest + ([(what, mode, tuple(sorted(holders)))] if holders else []))))


def _lock(state, op):
    what, mode = op.args
    held, holders = _holders(state, what)
    others = [h for h in holders if h != op.process]
    free = not others or mode == held == "shared"
    if op.result[0] == "EAGAIN":
        return state if not free else None
    if op.result[0] != "ok" or not free:
        return None
    return _with_holders(state, what, mode, set(others) | {op.process})


def _unlock(state, op):
    what = op.args[0]
    held, holders = _holders(state, what)
    return _with_holders(state, what, held, [h for h in holders if h != op.process]) if op.result[0] == "ok" else None


def _note(state, op):
    """The first half of a rename: what the old name stood for."""
    there = _get(state.names, op.args[0])
    return state._replace(noted=_set(state.noted, op.process, there)) if there is not None else None


def _rename_noted(state, op):
    """The second half: if the new name stands for the same file by now, the kernel leaves it at that."""
    seen = _get(state.noted, op.process)
    forgotten = state._replace(noted=_set(state.noted, op.process, None))
    if _get(state.names, op.args[1]) == seen:
        return forgotten
    return (_exchange if op.verb == "exchange_noted" else _rename)(forgotten, op)


VERBS = {"create": _create, "open": _open, "unlink": _unlink, "rename": _rename, "exchange": _exchange, "link": _link, "stat": _stat,
         "fstat": _fstat, "append": _append, "read": _read, "list": _list, "lock": _lock, "wait": _lock, "unlock": _unlock,
         "note": _note, "rename_noted": _rename_noted, "exchange_noted": _rename_noted}


def _apart(history):
    """The same history with rename and stat in their two halves."""
    ops = []
    for op in history:
        if op.verb == "stat" and op.result[0] == "ok":
            ops.append(op._replace(verb="open", result=op.result[:2]))
            ops.append(op._replace(verb="fstat", args=[op.result[1]], result=["ok", *op.result[2:]], after=len(ops) - 1))
        elif op.verb in ("rename", "exchange") and op.result[0] == "ok":
            ops.append(op._replace(verb="note", args=op.args[:1]))
            ops.append(op._replace(verb=f"{op.verb}_noted", after=len(ops) - 1))
        else:
            ops.append(op)
    return ops


class Search:
    """One search.  order: the operations of the longest beginning that was found, by their places in the history."""

    def __init__(self, history, start=State()):
        self.ops, self.start = history, start
        self.order, self.nodes = [], 0

    def run(self):
        """Whether there is an order."""
        everything = (1 << len(self.ops)) - 1
        seen, order = set(), []
        by_call = sorted(range(len(self.ops)), key=lambda i: self.ops[i].called)
        # Each level: the set of what is done, and the (operation, state) still to be tried.
        stack = [(0, self._next(0, self.start, by_call))]
        if not everything:
            return True
        while stack:
            done, choices = stack[-1]
            if not choices:
                stack.pop()
                if order:
                    order.pop()
                continue
            place, state = choices.pop()
            done |= 1 << place
            if (done, state) in seen:
                continue
            seen.add((done, state))
            self.nodes += 1
            if self.nodes > NODES_MAX:
                raise Undecided(f"no answer after {self.nodes} steps")
            order.append(place)
            if len(order) > len(self.order):
                self.order = list(order)
            if done == everything:
                return True
            stack.append((done, self._next(done, state, by_call)))
        return False

    def _next(self, done, state, by_call):
        """What could come next: whatever was called before the first return of those that are left."""
        end, choices = None, []
        for i in by_call:
            if done >> i & 1:
                continue
            op = self.ops[i]
            if end is not None and op.called > end:
                break
            end = op.returned if end is None else min(end, op.returned)
            choices.append(i)
        found = []
        for i in reversed(choices):
            op = self.ops[i]
            if op.called > end or op.after is not None and not done >> op.after & 1:
                continue
            after = VERBS[op.verb](state, op)
            if after is not None:
                found.append((i, after))
        return found


def check(history):
    """(linearizable?, the Search that says why not, whether operations had to be taken apart)."""
    search = Search(history)
    if search.run():
        return True, search, False
    apart = Search(_apart(history))
    if apart.run():
        return True, apart, True
    return False, search, False


def line(op, base=0):
    """A line of JSON for people and for main()."""
    return json.dumps({"us": [round((op.called - base) / 1000, 4), round((op.returned - base) / 1000, 4)], "who": op.process, "op": op.verb,
                       "args": list(op.args), "result": list(op.result)})


def lines(history, search=None):
    """The whole history, in the order of calls; those the search could not place are marked."""
    base = min((op.called for op in history), default=0)
    placed = set(search.order) if search else set(range(len(history)))
    return [("    " if i in placed else "  ! ") + line(history[i], base) for i in sorted(range(len(history)), key=lambda i: history[i].called)]


def parse(text):
    history = []
    for each in text.splitlines():
        if "{" in each:
            o = json.loads(each[each.index("{"):])
            history.append(Op(o["who"], o["op"], o["args"], o["result"], round(o["us"][0] * 1000, 1), round(o["us"][1] * 1000, 1)))
    return history


def main():
    text = open(sys.argv[1], encoding="utf-8").read() if len(sys.argv) > 1 else sys.stdin.read()
    history = parse(text)
    good, search, apart = check(history)
    if not good:
        print("\n".join(lines(history, search)))
    print(f"{len(history)} operations, {search.nodes} steps: {'linearizable' if good else 'NOT linearizable'}"
          f"{', with rename or stat taken apart' if apart else ''}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
