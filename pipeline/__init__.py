"""Reading records, from shards or other files: training batches of one host, and padded epochs for
exact evaluation.

Users start with `datasets`, whose DatasetInput delivers NumPy arrays, and with `ops`, which decode
and augment. `tf_data` returns the same batches as a tf.data.Dataset, and makes static batches of
any other tf.data program. `records` reads records by number. `shards` is the format itself and
needs no TensorFlow."""
