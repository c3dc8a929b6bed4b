"""The checker of linear.py itself: histories it must take, and histories it must refuse."""
import random

from linear import VERBS, Op, State, check, lines, parse
from suite import case

OK, ENOENT, EEXIST, EAGAIN = ["ok"], ["ENOENT"], ["EEXIST"], ["EAGAIN"]


def history(*ops):
    """Each: (called, returned, process, verb, args, result)."""
    return [Op(process, verb, list(args), list(result), called, returned) for called, returned, process, verb, args, result in ops]


def taken(test, what, *ops):
    test.true(check(history(*ops))[0], f"{what}: linearizable")


def refused(test, what, *ops):
    test.true(not check(history(*ops))[0], f"{what}: not linearizable")


MADE = (0, 1, 1, "create", ["a"], ["ok", 7])


@case
def one_after_another_must_be_as_in_one_process(test):
    taken(test, "create, stat", MADE, (2, 3, 2, "stat", ["a"], ["ok", 7, 1, 0]))
    refused(test, "a stale ENOENT", MADE, (2, 3, 2, "stat", ["a"], ENOENT))
    refused(test, "a stale name", MADE, (2, 3, 2, "unlink", ["a"], OK), (4, 5, 1, "open", ["a"], ["ok", 7]))
    refused(test, "a stale size", MADE, (2, 3, 1, "append", [7, 1], OK), (4, 5, 2, "stat", ["a"], ["ok", 7, 1, 0]))
    refused(test, "a stale link count", MADE, (2, 3, 1, "link", [7, "b"], OK), (4, 5, 2, "fstat", [7], ["ok", 1, 0]))
    refused(test, "another inode", MADE, (2, 3, 2, "open", ["a"], ["ok", 8]))
    refused(test, "a stale listing", MADE, (2, 3, 2, "list", [], ["ok", []]))
    refused(test, "an error nobody expects", MADE, (2, 3, 2, "unlink", ["a"], ["EIO"]))
    taken(test, "unlinked and still open", MADE, (2, 3, 2, "unlink", ["a"], OK), (4, 5, 1, "append", [7, 1], OK),
          (6, 7, 1, "read", [7], ["ok", [1]]), (8, 9, 1, "fstat", [7], ["ok", 0, 1]))


@case
def of_two_creators_one_wins(test):
    taken(test, "one", (0, 9, 1, "create", ["a"], ["ok", 7]), (1, 8, 2, "create", ["a"], EEXIST))
    refused(test, "both", (0, 9, 1, "create", ["a"], ["ok", 7]), (1, 8, 2, "create", ["a"], ["ok", 8]))
    refused(test, "none", (0, 9, 1, "create", ["a"], EEXIST), (1, 8, 2, "create", ["a"], EEXIST))
    taken(test, "both, with an unlink between", (0, 9, 1, "create", ["a"], ["ok", 7]), (1, 8, 2, "create", ["a"], ["ok", 8]),
          (0, 9, 3, "unlink", ["a"], OK))


@case
def of_two_renames_of_one_name_one_wins(test):
    taken(test, "one", MADE, (2, 9, 1, "rename", ["a", "b"], OK), (3, 8, 2, "rename", ["a", "c"], ENOENT))
    refused(test, "both", MADE, (2, 9, 1, "rename", ["a", "b"], OK), (3, 8, 2, "rename", ["a", "c"], OK))
    refused(test, "both one after the other to the same name", MADE, (2, 3, 1, "rename", ["a", "b"], OK), (4, 5, 2, "rename", ["a", "b"], OK))
    taken(test, "both at once to the same name, which the kernel allows", MADE, (2, 9, 1, "rename", ["a", "b"], OK),
          (3, 8, 2, "rename", ["a", "b"], OK))


@case
def nobody_sees_half_a_rename(test):
    moved = (2, 9, 1, "rename", ["a", "b"], OK)
    taken(test, "before", MADE, moved, (3, 4, 2, "open", ["a"], ["ok", 7]), (5, 6, 2, "open", ["b"], ENOENT))
    taken(test, "after", MADE, moved, (3, 4, 2, "open", ["a"], ENOENT), (5, 6, 2, "open", ["b"], ["ok", 7]))
    refused(test, "neither", MADE, moved, (3, 4, 2, "open", ["a"], ENOENT), (5, 6, 2, "open", ["b"], ENOENT))
    refused(test, "back again", MADE, moved, (3, 4, 2, "open", ["b"], ["ok", 7]), (5, 6, 2, "open", ["a"], ["ok", 7]))
    over = [MADE, (2, 3, 1, "create", ["b"], ["ok", 8]), (4, 9, 1, "rename", ["a", "b"], OK)]
    taken(test, "the old or the new file under a name renamed over", *over, (5, 6, 2, "open", ["b"], ["ok", 8]),
          (7, 8, 2, "open", ["b"], ["ok", 7]))
    refused(test, "no file under it", *over, (5, 6, 2, "open", ["b"], ENOENT))
    both = [MADE, (2, 3, 1, "create", ["b"], ["ok", 8]), (4, 9, 1, "exchange", ["a", "b"], OK)]
    refused(test, "one file under both names", *both, (5, 6, 2, "open", ["a"], ["ok", 7]), (7, 8, 2, "open", ["b"], ["ok", 7]),
            (9, 10, 3, "open", ["a"], ["ok", 7]))


@case
def appends_are_neither_lost_nor_doubled(test):
    two = [MADE, (2, 9, 1, "append", [7, 1], OK), (3, 8, 2, "append", [7, 2], OK)]
    taken(test, "both, in one order", *two, (10, 11, 1, "read", [7], ["ok", [1, 2]]))
    taken(test, "both, in the other", *two, (10, 11, 1, "read", [7], ["ok", [2, 1]]))
    refused(test, "one is lost", *two, (10, 11, 1, "read", [7], ["ok", [1]]))
    refused(test, "one is there twice", *two, (10, 11, 1, "read", [7], ["ok", [1, 2, 2]]))
    refused(test, "two readers see two orders", *two, (10, 11, 1, "read", [7], ["ok", [1, 2]]), (12, 13, 2, "read", [7], ["ok", [2, 1]]))
    refused(test, "a reader goes back", *two, (4, 5, 3, "read", [7], ["ok", [1]]), (6, 7, 3, "read", [7], ["ok", []]))
    refused(test, "in the wrong order", MADE, (2, 3, 1, "append", [7, 1], OK), (4, 5, 2, "append", [7, 2], OK),
            (6, 7, 3, "read", [7], ["ok", [2, 1]]))


@case
def locks_exclude(test):
    held = (0, 1, 1, "lock", ["x", "exclusive"], OK)
    taken(test, "refused", held, (2, 3, 2, "lock", ["x", "exclusive"], EAGAIN))
    refused(test, "two holders", held, (2, 3, 2, "lock", ["x", "exclusive"], OK))
    refused(test, "shared beside exclusive", held, (2, 3, 2, "lock", ["x", "shared"], OK))
    taken(test, "let go meanwhile", held, (2, 9, 2, "lock", ["x", "exclusive"], OK), (3, 8, 1, "unlock", ["x"], OK))
    refused(test, "refused though free", held, (2, 3, 1, "unlock", ["x"], OK), (4, 5, 2, "lock", ["x", "exclusive"], EAGAIN))
    taken(test, "shared twice", (0, 1, 1, "lock", ["x", "shared"], OK), (2, 3, 2, "lock", ["x", "shared"], OK))
    refused(test, "a wait that ends too early", held, (2, 5, 2, "wait", ["x", "exclusive"], OK), (6, 7, 1, "unlock", ["x"], OK))


@case
def a_stat_may_fall_between_look_up_and_attributes(test):
    taken(test, "no links left", MADE, (2, 9, 1, "stat", ["a"], ["ok", 7, 0, 0]), (3, 8, 2, "unlink", ["a"], OK))
    refused(test, "no links left before the unlink", MADE, (2, 3, 1, "stat", ["a"], ["ok", 7, 0, 0]), (4, 5, 2, "unlink", ["a"], OK))


@case
def what_a_machine_with_one_lock_did_is_always_taken_and_what_was_changed_mostly_refused(test):
    """Random concurrent histories, made by choosing the moment of each first; then one result is falsified."""
    rng = random.Random(f"{test.seed} checker")
    caught = 0
    for turn in range(200):
        ops = random_history(rng, 24, 4)
        good, search, _ = check(ops)
        if not good:
            test.true(False, f"turn {turn}: taken:\n" + "\n".join(lines(ops, search)))
        k = rng.randrange(len(ops))
        ops[k] = ops[k]._replace(result=["ok", 999] if ops[k].verb in ("create", "open") else ["EIO"])
        caught += not check(ops)[0]
    test.true(caught >= 140, f"of 200 falsified histories {caught} were refused")
    test.equal(check(parse("\n".join(lines(ops))))[0], check(ops)[0], "a history that was printed and read again")


def random_history(rng, count, processes):
    """By a machine that does each operation at one moment, with calls and returns stretched around it."""
    state, ops, inode, clocks = State(), [], 100, [0] * processes
    for number in range(count):
        at = 10 * (number + 1)
        idle = [p for p in range(processes) if clocks[p] < at]
        if not idle:
            continue
        who = rng.choice(idle)
        called, returned = rng.randrange(clocks[who], at) + 0.5, at + rng.randrange(1, 60)
        clocks[who] = returned
        verb = rng.choice(["create", "open", "unlink", "rename"])
        args = rng.sample(["a", "b", "c"], 2 if verb == "rename" else 1)
        for result in (["ok", inode] if verb == "create" else ["EEXIST"], ["EEXIST"], ["ENOENT"], OK,
                       *(["ok", i] for _, i in state.names)):
            op = Op(who, verb, args, result, called, returned)
            if verb == "open" and result == OK:
                continue
            after = VERBS[verb](state, op)
            if after is not None:
                state, inode = after, inode + 1
                ops.append(op)
                break
    return ops
