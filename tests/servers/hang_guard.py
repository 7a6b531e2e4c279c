"""Ends a process of pytest in which nothing happens between tests, and prints what its threads do.

pytest's own timeouts watch a test while it runs and has not failed. They do not see a process that waits for its next
test, tears down one that failed, ends its session, or hands out tests to others: there, a hang would have no end."""

import faulthandler
import os

import pytest


def pytest_configure(config):
    config.pluginmanager.register(_HangGuard(config))


class _HangGuard:
    def __init__(self, config):
        self._limit = float(config.getini("faulthandler_timeout"))
        self._stderr = os.dup(2)  # while pytest captures nothing
        self._hands_out_tests = bool(config.getoption("numprocesses", None))  # to xdist's workers
        self._watch()

    def _watch(self, times=1.5):
        """times: of the limit of a test, because a worker may wait for the last test of another."""
        faulthandler.dump_traceback_later(times * self._limit, exit=True, file=self._stderr)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self):
        """Once a test has ended, pytest no longer watches."""
        result = yield
        self._watch()
        return result

    def pytest_exception_interact(self):
        """Once a test has failed, pytest no longer watches either, and its teardown is yet to come."""
        self._watch(times=1)

    def pytest_runtest_logreport(self):
        if self._hands_out_tests:
            self._watch(times=2)  # the workers end first, as their stacks tell more

    def pytest_unconfigure(self):
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)
