"""The shard format: TFRecord shards, index, manifest. It is all that writers and readers have in
common.

Beam workers, readers and tools import it, so it depends only on the standard library, numpy,
msgspec, google-crc32c and a storage client."""
