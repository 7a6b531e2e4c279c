"""A few small strings shared by all processes of a run, independent of collectives and even while these block.

The only module that uses jax's coordination service. Process 0 has started that in its own process (service.py), or
runs it itself if a program has initialized jax.distributed without `join`."""

import threading
from typing import Any

import jax
from jax._src import distributed  # jax has no public module for its key-value store

StoreError = jax.errors.JaxRuntimeError  # any method may raise it: the service is gone


class LocalStore:
    """The store of a single process; `view` makes stores for threads that act as hosts. Keys are paths."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self._lock, self._values = threading.Lock(), dict[str, str]()

    def view(self, index: int, count: int) -> "LocalStore":
        """The same values, as host `index` of `count`."""
        other = LocalStore()
        other.index, other.count, other._lock, other._values = index, count, self._lock, self._values
        return other

    def put(self, key: str, value: str) -> None:
        """Sets a key, whether or not it was set."""
        with self._lock:
            self._values[key] = value

    def put_first(self, key: str, value: str) -> str:
        """Sets a key unless it is set; returns its value."""
        with self._lock:
            return self._values.setdefault(key, value)

    def get(self, key: str) -> str | None:
        """The value of a key; None if it is not set."""
        return self._values.get(key)

    def by_host(self, directory: str) -> dict[int, str]:
        """Host -> value, for the keys `directory`/<host> that are set."""
        with self._lock:
            return _by_host((key, value) for key, value in self._values.items() if key.startswith(f"{directory}/"))

    def delete(self, key: str) -> None:
        """Unsets a key."""
        with self._lock:
            self._values.pop(key, None)

    def reach(self, seconds: float) -> None:
        """Returns once the store answers; StoreError after this time. Other methods may wait forever."""


class JaxStore:
    """The store of a run of several processes."""

    def __init__(self, index: int, count: int) -> None:
        self.index, self.count = index, count
        self._client: Any = distributed.global_state.client
        self.put("reach", "")

    def put(self, key: str, value: str) -> None:
        self._client.key_value_set(f"infeed/{key}", value, allow_overwrite=True)

    def put_first(self, key: str, value: str) -> str:
        try:
            self._client.key_value_set(f"infeed/{key}", value)
        except StoreError:
            if (found := self.get(key)) is None:
                raise
            return found
        return value

    def get(self, key: str) -> str | None:
        try:
            return self._client.key_value_try_get(f"infeed/{key}")
        except StoreError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def by_host(self, directory: str) -> dict[int, str]:
        return _by_host(self._client.key_value_dir_get(f"infeed/{directory}/"))

    def delete(self, key: str) -> None:
        self._client.key_value_delete(f"infeed/{key}")

    def reach(self, seconds: float) -> None:
        self._client.blocking_key_value_get("infeed/reach", round(1000 * seconds))


Store = LocalStore | JaxStore


def open_store() -> Store:
    """The store of this run."""
    return LocalStore() if jax.process_count() == 1 else JaxStore(jax.process_index(), jax.process_count())


def joined_store() -> Store | None:
    """The store of this run, even before jax has looked for devices; None if jax.distributed is not initialized."""
    state = distributed.global_state
    return None if state.client is None else JaxStore(state.process_id, state.num_processes)


def _by_host(items: Any) -> dict[int, str]:
    return {int(key.rsplit("/", 1)[1]): value for key, value in items}
