"""What a run reports: TensorBoard events, metrics.jsonl and the progress line."""
