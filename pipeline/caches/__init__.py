"""Records that are kept on their way, in memory or on a local disk. Records again; no order, no TensorFlow."""
