"""Where records come from: one protocol, Records, and a small module per kind of source.

open_dataset.py detects what is at a location. No TensorFlow, no order, no batches."""
