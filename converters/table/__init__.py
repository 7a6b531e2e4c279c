"""Tables (csv, tsv, jsonl) that name images or contain texts: their layouts, rows and records."""
