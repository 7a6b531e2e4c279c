"""docs/format.md, frozen: these bytes must never change. A failure means that old datasets cannot be read."""

import json

import numpy as np
from index_files import encode_index

from pipeline.shards.example import encode_example
from pipeline.shards.frames import crc32c, frame
from pipeline.shards.manifest import Manifest, update_manifest
from pipeline.shards.naming import (
    add_digests,
    index_file,
    key_digest,
    parts_file,
    ranks,
    receipt_file,
    shard_file,
)
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.local import LocalStorage


def test_the_bytes_of_an_example():
    schema = Schema(
        "golden", {"b": Feature("bytes"), "i": Feature("int64", (2,)), "f": Feature("float32")}
    )
    encoded = encode_example(schema, {"b": b"\x00\xff", "i": [-1, 300], "f": 0.5})
    assert encoded.hex() == (
        "0a33" "0a0b" "0a0162" "1206" "0a04" "0a0200ff"
        "0a0d" "0a0166" "1208" "1206" "0a04" "0000003f"
        "0a15" "0a0169" "1210" "1a0e" "0a0c" "ffffffffffffffffff01" "ac02"
    )  # fmt: skip


def test_the_bytes_of_a_record():
    assert frame(b"infeed").hex() == "0600000000000000" "7369d537" "696e66656564" "e2d39e18"  # fmt: skip


def test_the_bytes_of_an_index():
    data = encode_index(np.array([[5, 0xFFFFFFFF], [0, 7]]))
    header = b"{'descr': '<u4', 'fortran_order': False, 'shape': (2, 2), }"
    assert data[:10] == b"\x93NUMPY\x01\x00v\x00"
    assert data[10:].startswith(header)
    assert data[128:].hex() == "05000000ffffffff0000000007000000"


def test_the_checksum_of_a_manifest(tmp_path):
    manifest = Manifest(
        "golden", Schema("s", {"a": Feature("int64")}), {}, Labels("a", 1, ("caf\u00e9",)), "infeed"
    )
    update_manifest(LocalStorage(), str(tmp_path), lambda _: manifest)
    text = (
        r'{"format_version":1,"labels":{"base":1,"key":"a","names":["caf\u00e9"]},"name":"golden",'
        r'"schema":{"features":{"a":{"content":"raw","doc":"","dtype":"int64","optional":false,"shape":[]}},"name":"s"},'
        r'"splits":{},"writer":"infeed"}'
    )
    assert (
        json.loads((tmp_path / "manifest.json").read_text())["checksum"]
        == f"{crc32c(text.encode()):08x}"
        == "fcf797d6"
    )


def test_the_rank_of_a_key():
    keys = np.array(
        [b"train/n01440764/n01440764_10026.JPEG", "validation/\u00e9.JPEG".encode()], "S"
    )
    assert ranks(0, "train", keys).tolist() == [15575801292224014770, 4920022514066167941]
    assert ranks(1, "train", keys).tolist() != ranks(0, "train", keys).tolist()
    assert ranks(0, "validation", keys).tolist() != ranks(0, "train", keys).tolist()


def test_the_digest_of_the_keys():
    assert (
        key_digest([b"a", b"b"]) == key_digest([b"b", b"a"]) == 0xBDDA89BAE6AAB45039933EC86A444C96
    )
    assert add_digests([key_digest([b"a"]), key_digest([b"b"])]) == key_digest([b"a", b"b"])


def test_the_names_of_shards_indexes_and_receipts():
    assert shard_file("train", 7, 1024) == "train-00007-of-01024"
    assert shard_file("train", 7, 123456) == "train-00007-of-123456"
    assert index_file("validation") == "_index/validation.npy"
    assert parts_file("validation") == "_index/validation.parts.json"
    assert receipt_file("train", 0, 1) == "_shards/train-00000-of-00001.json"
