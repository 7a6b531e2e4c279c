"""Reading records, from shards or other files: training batches of one host, and padded epochs for exact evaluation.

`datasets` is where users start: its DatasetInput delivers NumPy arrays, which the trainer reads directly. `tf_data` has
the same as tf.data.Datasets, and makes exact batches of any tf.data program. `records` reads records by number.
`pipeline.shards` is the format itself and needs no TensorFlow."""
