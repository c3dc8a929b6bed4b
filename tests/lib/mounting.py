"""Options that a run adds to every mount it makes, such as "--fuse-uring on": from the option --mount-options of a
suite, or from EPOCHFS_MOUNT_OPTIONS in the environment.

Three words are the tests' own: {cache} in an option is a folder that all mounts of a site share, {own} one that belongs to
this mount, also when it is made again, and --tcp makes servers listen on a port as well, by which mounts reach them.
Options that read-only mounts and replicas refuse (--writeback=DIR) are left out for those, and directories that a mount names itself."""
import os
import shlex
import socket

VARIABLE = "EPOCHFS_MOUNT_OPTIONS"
RING_SWITCH = "/sys/module/fuse/parameters/enable_uring"


def add_option(parser):
    parser.add_argument("--mount-options", metavar="OPTIONS",
                        help="added to every mount, for example \"--tcp --fuse-uring on --cache-dir {cache}\"")


def take_option(options):
    """For this run and all processes it starts."""
    if options.mount_options:
        os.environ[VARIABLE] = options.mount_options


def _words():
    return shlex.split(os.environ.get(VARIABLE, ""))


def for_every_mount(cache, own, options):
    """options: the mount's other ones."""
    left_out = ["--tcp"]
    if any(word in ("--ro", "--replica") or word.startswith("--writeback=") for word in options):
        left_out += ["--writeback", "--upload-limit"]
    if any(word.startswith("--cache-dir") for word in options):
        left_out += ["--cache-dir", "--cache-size", "--cache-min-free"]
    return [word.replace("{cache}", cache).replace("{own}", own) for word in _words() if not word.startswith(tuple(left_out))]


def writes_back():
    return any(word.startswith("--writeback=") for word in _words())


def has_cache():
    return any(word.startswith("--cache-dir") for word in _words())


def over_tcp():
    """Whether mounts reach their server over TCP, and not by its unix socket."""
    return "--tcp" in _words()


def tcp_address():
    """A port of its own, or None if mounts are to use the unix socket."""
    if not over_tcp():
        return None
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def transports():
    """Both, for --fuse-uring; io_uring must be where it can be switched on."""
    return ("on" if os.access(RING_SWITCH, os.W_OK) else "auto", "off")


def ring_wanted(options=()):
    """By every mount, or by one with these options: the last word counts."""
    words = " ".join([*_words(), *options]).replace("=", " ").split()
    choices = [choice for word, choice in zip(words, words[1:]) if word == "--fuse-uring"]
    return bool(choices) and choices[-1] != "off"


def ring_switch_on(keeper):
    """Lets the kernel offer io_uring to mounts, until the keeper puts it back."""
    try:
        with open(RING_SWITCH, encoding="ascii") as f:
            before = f.read().strip()
        if before == "N":
            keeper.restore(RING_SWITCH, before)
            with open(RING_SWITCH, "w", encoding="ascii") as f:
                f.write("Y")
    except OSError as error:
        print(f"no FUSE over io_uring: {error}", flush=True)
