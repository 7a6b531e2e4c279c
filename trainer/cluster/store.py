"""A few small strings that all processes of a run can see, beside the collectives and while these are blocked.

The one place that asks jax's coordination service, which process 0 has started in a process of its own (service.py), or
holds itself where a program has initialized jax.distributed without `join`."""

import threading
from typing import Any, Protocol

import jax
from jax._src import distributed  # jax offers its key-value store in no public module

__all__ = ["LocalStore", "Store", "StoreError", "joined_store", "open_store"]

StoreError = jax.errors.JaxRuntimeError  # any method may raise it: the service is gone


class Store(Protocol):
    """This process is `index` of `count`. Keys are paths; what they hold, anyone may change."""

    index: int
    count: int

    def put(self, key: str, value: str) -> None:
        """Sets a key, whatever it was."""
        ...

    def put_first(self, key: str, value: str) -> str:
        """Sets a key unless it is set; what it is now."""
        ...

    def get(self, key: str) -> str | None:
        """The value of a key; None where it is not set."""
        ...

    def by_host(self, directory: str) -> dict[int, str]:
        """Host -> value, of the keys `directory`/<host> that are set."""
        ...

    def delete(self, key: str) -> None:
        """Unsets a key."""
        ...

    def reach(self, seconds: float) -> None:
        """Returns once the store answers; StoreError if it does not in this time. Other methods may wait for ever."""
        ...


class LocalStore:
    """The store of a process that is alone; `view` makes those of threads that stand for hosts."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self._lock, self._values = threading.Lock(), dict[str, str]()

    def view(self, index: int, count: int) -> "LocalStore":
        """The same values as another host of `count` sees them."""
        other = LocalStore()
        other.index, other.count, other._lock, other._values = index, count, self._lock, self._values
        return other

    def put(self, key: str, value: str) -> None:
        """See Store."""
        with self._lock:
            self._values[key] = value

    def put_first(self, key: str, value: str) -> str:
        """See Store."""
        with self._lock:
            return self._values.setdefault(key, value)

    def get(self, key: str) -> str | None:
        """See Store."""
        return self._values.get(key)

    def by_host(self, directory: str) -> dict[int, str]:
        """See Store."""
        with self._lock:
            return _by_host((key, value) for key, value in self._values.items() if key.startswith(f"{directory}/"))

    def delete(self, key: str) -> None:
        """See Store."""
        with self._lock:
            self._values.pop(key, None)

    def reach(self, seconds: float) -> None:
        """See Store."""


class JaxStore:
    """The store of a run of several processes."""

    def __init__(self, index: int, count: int) -> None:
        self.index, self.count = index, count
        self._client: Any = distributed.global_state.client
        self.put("reach", "")

    def put(self, key: str, value: str) -> None:
        """See Store."""
        self._client.key_value_set(f"infeed/{key}", value, allow_overwrite=True)

    def put_first(self, key: str, value: str) -> str:
        """See Store."""
        try:
            self._client.key_value_set(f"infeed/{key}", value)
        except StoreError:
            found = self.get(key)
            if found is None:
                raise
            return found
        return value

    def get(self, key: str) -> str | None:
        """See Store."""
        try:
            return self._client.key_value_try_get(f"infeed/{key}")
        except StoreError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def by_host(self, directory: str) -> dict[int, str]:
        """See Store."""
        return _by_host(self._client.key_value_dir_get(f"infeed/{directory}/"))

    def delete(self, key: str) -> None:
        """See Store."""
        self._client.key_value_delete(f"infeed/{key}")

    def reach(self, seconds: float) -> None:
        """See Store."""
        self._client.blocking_key_value_get("infeed/reach", round(1000 * seconds))


def open_store() -> Store:
    """The store of this run."""
    return LocalStore() if jax.process_count() == 1 else JaxStore(jax.process_index(), jax.process_count())


def joined_store() -> Store | None:
    """The store of this run, also before jax has looked for devices; None where jax.distributed is not initialized."""
    state = distributed.global_state
    return None if state.client is None else JaxStore(state.process_id, state.num_processes)


def _by_host(items: Any) -> dict[int, str]:
    return {int(key.rsplit("/", 1)[1]): value for key, value in items}
