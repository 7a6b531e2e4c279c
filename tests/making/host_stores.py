"""The store of a run in this process, for threads that act as its hosts; and exchanges over it."""

import threading
import time

from trainer.hosts.exchange import Exchange, Store, StoreError


class Client:
    """Has the methods of jaxlib's client that the store calls."""

    def __init__(self):
        self._lock, self.values = threading.Lock(), {}

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._lock:
            if key in self.values and not allow_overwrite:
                raise StoreError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value

    def key_value_try_get(self, key):
        if key not in self.values:
            raise StoreError(f"NOT_FOUND: {key}")
        return self.values[key]

    def key_value_dir_get(self, directory):
        with self._lock:
            return [(key, value) for key, value in self.values.items() if key.startswith(directory)]


def stores_of(count):
    """One for each host; that of a single process keeps nothing."""
    client = Client() if count > 1 else None
    return [Store(client, index, count) for index in range(count)]


def wait(look, seconds):
    """As Supervisor.wait, without anybody who could fail."""
    stop = time.monotonic() + seconds
    while (value := look()) is None and time.monotonic() < stop:
        time.sleep(0.002)
    return value


def exchanges_of(count, call=0):
    return [Exchange(store, call, wait) for store in stores_of(count)]
