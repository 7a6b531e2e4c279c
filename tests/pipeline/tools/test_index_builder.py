"""The index of a foreign split while it is built, and as it is held."""

import tracemalloc

from pipeline.shards.record import frame
from pipeline.storage.local import LocalStorage
from pipeline.tools import index_builder


def test_memory_is_eight_bytes_a_record_and_the_index_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(index_builder, "PIECE_BYTES", 1 << 14)
    (tmp_path / "train.tfrecord").write_bytes(frame(b"0" * 300) * 5_000)
    storage = LocalStorage()
    tracemalloc.start()
    try:
        split = index_builder.IndexedSplit(
            tuple(index_builder.IndexBuilder(storage, str(tmp_path), "train").files(storage.list(str(tmp_path))))
        )
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert split.num_records == 5_000
    assert held < 12 * 5_000 + 60_000
    assert split.index is split.index
