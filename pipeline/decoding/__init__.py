"""From payloads to the features of a batch: layouts, ops, padding, in one TensorFlow graph."""
