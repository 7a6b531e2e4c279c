"""The shard contract: TFRecord shards, index, manifest. Writers and readers share it and nothing else.

Beam workers, readers and tools load it, so: stdlib, numpy, google-crc32c and a storage client only."""
