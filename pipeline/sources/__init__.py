"""Where records come from: one protocol, Records, and a small module for each kind of source.

opening.py finds out what is at a place. No TensorFlow, no order, no batches."""
