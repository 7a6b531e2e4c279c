"""What a work directory records of its runs: events, metrics.jsonl, starts and ends; and the
progress line."""
