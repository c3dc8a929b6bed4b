"""One server for all cases, and a mount where one is asked for."""
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))

from epochfs import Site   # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "chance: what it meets depends on chance and the machine; it runs with --chance")


@pytest.fixture(scope="session")
def site():
    with Site(os.environ["EPOCHFS_BUILD"]) as site:
        yield site
        assert site.complaints() == []


@pytest.fixture(scope="session")
def server(site):
    return site.server(options=["--grace", "0"])


@pytest.fixture(scope="session")
def mount(server):
    """A volume `files`, mounted."""
    server.volume("files")
    return server.mount("files")


@pytest.fixture
def cli(server):
    """cli("volume", "list") -> (exit code, stdout, stderr)"""
    def run(*words, **options):
        return server.cli(*words, check=False, **options)
    return run


@pytest.fixture
def good(cli):
    """The same for what must work: its output."""
    def run(*words, **options):
        code, out, err = cli(*words, **options)
        assert (code, err) == (0, ""), (words, out, err)
        return out
    return run


@pytest.fixture
def refused(cli):
    """The same for what must fail, with this exit code and a message that holds these texts."""
    def run(expected_code, words, *texts, **options):
        code, out, err = cli(*words, **options)
        assert code == expected_code, (words, out, err)
        assert "epochfs: " in err
        for text in texts:
            assert text in err
        return err
    return run
