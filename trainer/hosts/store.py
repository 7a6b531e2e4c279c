"""A few short values that all processes of a run can read, even while their devices wait for each other.

The key-value store of jax's coordination service. It belongs to process 0, and ends with it."""

import json
from contextlib import suppress
from typing import Any

import jax
from jax._src import distributed  # jax has no public module for its key-value store

StoreError = jax.errors.JaxRuntimeError  # any method may raise it: the service is gone


class Store:
    """The store as process `index` of `count` sees it. Keys are paths, values are JSON. One process has no use for it:
    it keeps nothing."""

    def __init__(self, client: Any = None, index: int = 0, count: int = 1) -> None:
        self._client, self.index, self.count = client, index, count

    def put(self, key: str, value: Any) -> None:
        """Sets a key, whether or not it was set."""
        if self._client:
            self._client.key_value_set(f"infeed/{key}", json.dumps(value), allow_overwrite=True)

    def put_first(self, key: str, value: Any) -> Any:
        """Sets a key unless it is set; returns its value."""
        with suppress(StoreError):  # it is set
            if self._client:
                self._client.key_value_set(f"infeed/{key}", json.dumps(value))
        found = self.get(key)
        return value if found is None else found

    def get(self, key: str) -> Any:
        """The value of a key; None if it is not set."""
        try:
            return json.loads(self._client.key_value_try_get(f"infeed/{key}")) if self._client else None
        except StoreError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def by_host(self, directory: str) -> dict[int, Any]:
        """Host -> value, for the keys `directory`/<host> that are set."""
        found: Any = self._client.key_value_dir_get(f"infeed/{directory}/") if self._client else ()
        return dict(sorted((int(key.rpartition("/")[2]), json.loads(value)) for key, value in found))


def open_store() -> Store:
    """The store of this run."""
    state = distributed.global_state
    several = state.client is not None and state.num_processes > 1
    return Store(state.client, state.process_id, state.num_processes) if several else Store()
