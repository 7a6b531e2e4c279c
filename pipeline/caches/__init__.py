"""Records cached in memory or on a local disk as they are read. They are Records again; no order, no TensorFlow."""
