"""What importing the reading side does, and does not."""

import io
import subprocess
import sys

from PIL import Image

from pipeline.shards.schema import Feature, Schema
from pipeline.tf_cpu import tf

BLOCKED = """
import sys
sys.modules["tensorflow"] = None
import pipeline.background, pipeline.caches, pipeline.hosts, pipeline.orders.order, pipeline.spec
import pipeline.sources.open_dataset
import pipeline.describe, pipeline.verify
try:
    import pipeline.datasets
except ModuleNotFoundError as e:
    print(e)
"""
UNDECODABLE = """
import sys
import jax
from pipeline.datasets import train_dataset
from pipeline.ops import DecodeJpeg
from pipeline.errors import SchemaError
try:
    next(train_dataset(sys.argv[1], global_batch=4, ops=[DecodeJpeg("image", into="image", shape=(9, 8, 1))]).batches())
except SchemaError as e:
    print(e)
"""


def test_without_tensorflow_only_reading_and_exporting_fail_with_the_install_command():
    done = subprocess.run([sys.executable, "-c", BLOCKED], check=False, capture_output=True, text=True, timeout=60)
    assert (
        done.stdout == "Reading shards and exporting models need TensorFlow, which is not installed. "
        "Install it: pip install 'tensorflow>=2.21'.\n"
    )


def test_a_record_that_cannot_be_decoded_is_one_error_also_where_jax_came_first(run_forked, write_dataset, tmp_path):
    """JAX sets the level of TensorFlow's log, too. The forked process has imported it before this package."""
    jpeg = io.BytesIO()
    Image.new("L", (8, 8)).save(jpeg, "JPEG")
    schema = Schema("images", {"image": Feature("bytes", content="image")})
    data = write_dataset(tmp_path / "data", {"train": [[{"image": jpeg.getvalue()}] * 8]}, schema)
    code, printed = run_forked(["-c", UNDECODABLE, data], timeout=120)
    assert (code, printed.splitlines()[1:]) == (0, []), printed
    assert "is a JPEG of a size other than" in printed


def test_tensorflow_is_hidden_from_accelerators():
    assert tf.config.get_visible_devices("GPU") == []
    assert tf.config.get_visible_devices("TPU") == []
    assert tf.config.get_visible_devices("CPU") != []
