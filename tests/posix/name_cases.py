"""Names and paths: lengths, bytes, case."""
import errno as E
import os

from suite import case


@case
def names_of_255_bytes_work_everywhere(t):
    for name in ("n" * 255, "\u00e9" * 127 + "x", " " * 255, "." + "d" * 254):
        path = t.path(name)
        t.file(name, b"x")
        t.content(path, b"x")
        t.true(name in os.listdir(t.dir), "it is listed")
        os.rename(path, t.path("short"))
        os.rename(t.path("short"), path)
        os.link(path, t.path("l" * 255))
        os.unlink(path)
        os.unlink(t.path("l" * 255))
    os.mkdir(t.path("d" * 255))
    os.symlink("x", t.path("s" * 255))


@case
def names_of_256_bytes_are_too_long(t):
    long, f = t.path("n" * 256), t.file("f")
    for function, args in ((os.stat, (long,)), (os.mkdir, (long,)), (os.rmdir, (long,)), (os.unlink, (long,)), (os.rename, (f, long)),
                           (os.rename, (long, f)), (os.link, (f, long)), (os.symlink, ("x", long)), (os.chmod, (long, 0o600)),
                           (os.open, (long, os.O_CREAT | os.O_WRONLY)), (os.mkfifo, (long,)), (os.readlink, (long,)), (os.truncate, (long, 0))):
        t.fails(E.ENAMETOOLONG, function, *args)


@case
def any_byte_but_slash_and_nul_is_a_name(t):
    names = [bytes([b]) for b in range(1, 256) if b not in (0x2F, 0x2E)] + [b"...", b"\xff\xfe\xfd", b"a\nb", b"--help"]
    folder = os.fsencode(t.dir)
    for name in names:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY, 0o600))
    t.equal(sorted(os.listdir(folder)), sorted(names))


@case
def case_and_normalisation_matter(t):
    t.file("Name", b"1")
    t.file("name", b"2")
    t.file("caf\u00e9", b"3")
    t.file("cafe\u0301", b"4")
    t.equal(len(t.names()), 4)
    t.content(t.path("Name"), b"1")


@case(lasting=False)
def paths_of_4095_bytes_work_and_4096_do_not(t):
    os.chdir(t.dir)
    depth = 0
    while len(os.getcwd()) < 4500 and depth < 18:
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
        depth += 1
    os.chdir(t.dir)
    parts = "/".join(["d" * 250] * 16)
    tail = "x" * (4095 - len(parts) - 1)
    if len(tail) > 250:
        parts, tail = parts + "/" + "d" * 250, ""
    path = parts + "/" + "y" * (4095 - len(parts) - 1)
    t.equal(len(path), 4095)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    t.works(os.stat, path)
    t.fails(E.ENAMETOOLONG, os.stat, path + "z")


@case
def trailing_slashes_and_dots(t):
    t.folder("d")
    t.file("f", b"x")
    t.works(os.stat, t.path("d") + "/")
    t.works(os.stat, t.path("d") + "//./../d/.")
    t.fails(E.ENOTDIR, os.stat, t.path("f") + "/")
    t.fails(E.ENOENT, os.stat, t.path("none") + "/")
    t.works(os.mkdir, t.path("e") + "/")
    t.works(os.rmdir, t.path("e") + "/")
    t.fails((E.EISDIR, E.ENOENT), os.open, t.path("new") + "/", os.O_CREAT | os.O_WRONLY)
    t.fails(E.ENOENT, os.stat, "")
