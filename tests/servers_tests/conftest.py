"""One server for all tests of a module; each finds it without faults and with an empty log."""

import pytest
from fake_gcs.server import start


@pytest.fixture(scope="package")
def running_server(tmp_path_factory):
    with start(tmp_path_factory.mktemp("fake_gcs")) as server:
        server.make_bucket("things")
        yield server


@pytest.fixture
def server(running_server):
    running_server.reset()
    return running_server
