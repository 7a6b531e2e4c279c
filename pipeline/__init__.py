"""Reading shards with tf.data: per-host training batches and padded, exact evaluation epochs.

`datasets` is where users start. `pipeline.shards` is the format itself and needs no TensorFlow."""
