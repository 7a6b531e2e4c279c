"""Reading shards with tf.data: per-host training batches and padded, exact evaluation epochs.

`pipeline.shards` below it is the format itself and needs no TensorFlow; `datasets` is where a user starts."""
