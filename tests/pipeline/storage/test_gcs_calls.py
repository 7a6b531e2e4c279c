"""The client and credentials of a process: one of each per server."""

import os
import threading

from google.auth.credentials import AnonymousCredentials

from pipeline.storage import gcs_calls


def test_credentials_that_are_found_late_are_not_those_of_another_server(bucket, monkeypatch):
    server, looking, found = os.environ["STORAGE_EMULATOR_HOST"], threading.Event(), threading.Event()

    def default():
        looking.set()
        assert found.wait(60)
        return object(), None

    monkeypatch.setattr("google.auth.default", default)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    thread = threading.Thread(target=gcs_calls.credentials)
    thread.start()
    assert looking.wait(60)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    gcs_calls._client.cache_clear()
    gcs_calls._credentials.cache_clear()
    found.set()
    thread.join()
    assert isinstance(gcs_calls.credentials(), AnonymousCredentials)
