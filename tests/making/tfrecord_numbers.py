"""TFRecord files of numbers, and their conversion in this process."""

import tensorflow as tf

from converters import tfrecord_to_gcs
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema

NUMBERS = Schema("numbers", {"i": Feature("int64")})


def payload(i):
    return encode_example(NUMBERS, {"i": i})


def write(path, payloads):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(frame, payloads)))


def convert(raw, out, *flags):
    tfrecord_to_gcs.main([f"--raw-data-dir={raw}", f"--gcs-output-path={out}", *flags])


def payloads_in(out, split="train"):
    files = sorted(map(str, out.glob(f"{split}-*-of-*")))
    return [record.numpy() for record in tf.data.TFRecordDataset(files)]
