"""Contenders for a work directory, on machines of any name, whose waits are milliseconds."""

from dataclasses import replace

import pytest

from trainer.ownership.owner_files import this_process
from trainer.ownership.ownership import Contender, Times


@pytest.fixture(params=["disk", "disk without locks", "bucket"])
def workdir(request, tmp_path, monkeypatch):
    """A work directory on each kind of storage."""
    if request.param == "bucket":
        return f"{request.getfixturevalue('bucket')}/run"
    if request.param == "disk without locks":

        def unsupported(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("fcntl.flock", unsupported)
    return str(tmp_path / "run")


@pytest.fixture
def contend():
    """contend(workdir, machine=None, renew=0.02): takes it, as a process of this machine or of another one.

    An owner that renews never is one that was suspended. All are released in the end."""
    leases = []

    def taking(workdir, machine=None, renew=0.02, silence=0.3, **options):
        here = this_process()
        if machine:
            here = replace(here, host=machine, machine=machine)
        taken = Contender(workdir, Times(renew, 0.0, silence, poll=0.002), here=here, **options).take()
        leases.append(taken)
        return taken

    yield taking
    for lease in leases:
        lease.release()
