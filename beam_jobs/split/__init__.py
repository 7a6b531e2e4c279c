"""The life of a split: its plan, its claim, its shards and receipts, the proof, the commit."""
