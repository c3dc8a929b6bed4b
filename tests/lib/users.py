"""Doing things as somebody else: in a forked child, with uid, gid and groups changed."""
import os
import pickle
import select
import signal
import traceback


class User:
    def __init__(self, name, uid, gid, groups=()):
        self.name, self.uid, self.gid, self.groups = name, uid, gid, tuple(groups)

    def also_in(self, *groups):
        """The same user with other supplementary groups."""
        return User(self.name, self.uid, self.gid, groups)

    def __repr__(self):
        return self.name


ROOT = User("root", 0, 0)
ANNA = User("anna", 20001, 20001)
BEN = User("ben", 20002, 20002)
TEAM = 20100     # a group neither is in, unless also_in says so


class Refused(Exception):
    """What a child raised that was no OSError."""


def become(user):
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def run_as(user, function, *args, umask=None, seconds=60):
    """Calls the function as the user and returns what it returned or raises what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if umask is not None:
                os.umask(umask)
            become(user)
            try:
                answer = ("value", function(*args))
            except OSError as error:
                answer = ("errno", error.errno, str(error))
            except BaseException:
                answer = ("error", traceback.format_exc())
            data = pickle.dumps(answer)
            while data:
                data = data[os.write(writer, data):]
        finally:
            os._exit(0)
    os.close(writer)
    try:
        answer = _collect(reader, seconds)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    if answer[0] == "value":
        return answer[1]
    if answer[0] == "errno":
        raise OSError(answer[1], answer[2])
    raise Refused(answer[1])


def _collect(reader, seconds):
    data = b""
    while select.select([reader], [], [], seconds)[0]:
        part = os.read(reader, 1 << 20)
        if not part:
            if not data:
                raise Refused("the child ended without a word")
            return pickle.loads(data)
        data += part
    raise Refused(f"no answer within {seconds} s")
