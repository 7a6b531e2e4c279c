import shutil

import pytest

from pipeline.datasets import eval_dataset, open_dataset
from pipeline.errors import SchemaError
from pipeline.ops import DecodeJpeg
from pipeline.sources.indexed_records import key_of


def test_keys_are_reconstructed_if_the_format_defines_how():
    values = {"image/filename": [b"a.JPEG"], "image/class/synset": [b"n1"]}
    assert key_of("imagenet2012", "train", values) == b"train/n1/a.JPEG"
    assert key_of("imagenet2012", "validation", values) == b"validation/a.JPEG"
    assert key_of("photos", "train", values) is None
    assert key_of("imagenet2012", "train", {}) is None


def test_an_error_names_the_record_by_its_key(digits, tmp_path):
    _, out = digits
    where = open_dataset(str(out)).where(7)
    assert " (record 7 of 'train', key train/n" in where
    decode = DecodeJpeg("image/encoded", shape=(8, 8, 1))
    with pytest.raises(SchemaError, match=r"\(record 0 of 'validation', key validation/\S+\.JPEG\): 'image/encoded'"):
        next(eval_dataset(str(out), global_batch=4, ops=[decode], keys=["image"]).batches())
    copy = shutil.copytree(out, tmp_path / "copy")
    records = open_dataset(str(copy))
    shard = min(copy.glob("train-00000-of-*"))
    damaged = bytearray(shard.read_bytes())
    damaged[20] ^= 1
    shard.write_bytes(damaged)
    assert records.where(0).endswith("record 0 at byte 0 (record 0 of 'train')")  # what cannot be read has no key
