"""What importing the reading side does, and does not."""

import re
import subprocess
import sys

import pytest
from pictures import encoded
from PIL import Image

from pipeline.shards.schema import Feature, Schema
from pipeline.tf_cpu import tf

WITHOUT = """
import sys
sys.modules.update({"tensorflow": None, "tensorflow_datasets": None, "jax": None, "grain": None})
import pipeline.grain, pipeline.commands.describe, pipeline.commands.verify, trainer.recipe
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.ops import DecodeRandomResizedCrop, TrivialAugmentWide
ops = [DecodeRandomResizedCrop("image", size=(8, 8)), TrivialAugmentWide()]
batch = next(train_dataset(sys.argv[1], global_batch=4, ops=ops, keys=["image"]).batches())
print(*[array.shape for array in batch.values()])
for name in ("pipeline.tf_data", "pipeline.tf_cpu"):
    try:
        __import__(name)
    except ModuleNotFoundError as e:
        print(e)
"""
NO_OPENCV = "import sys; sys.modules['cv2'] = None; import pipeline.datasets; import pipeline.ops"
IMPORTED = "import sys{}; import pipeline.tf_data; print('pipeline.tf_cpu' in sys.modules)"


@pytest.fixture
def images(write_dataset, tmp_path):
    """A dataset of eight grey JPEGs of 8 x 8 pixels."""
    jpeg = encoded(Image.new("L", (8, 8)))
    schema = Schema("images", {"image": Feature("bytes", content="image")})
    return write_dataset(tmp_path / "data", {"train": [[{"image": jpeg}] * 8]}, schema)


def run(program, *args):
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_tensorflow_batches_are_made_and_the_rest_names_the_install_command(images):
    done = run(WITHOUT, images)
    shapes, *errors = done.stdout.splitlines()
    assert shapes == "(4, 8, 8, 3) (4,) (4,) (4,) (4, 2)", done
    assert len(errors) == 2
    for error in errors:
        assert re.search(
            r"need TensorFlow, which is not installed\. Install it: pip install -e '.*\[tf", error
        )


def test_without_opencv_the_ops_name_the_install_command():
    last = run(NO_OPENCV).stderr.splitlines()[-1]
    assert "Ops need OpenCV, which is not installed. Install it: pip install -e '" in last


@pytest.mark.slow
@pytest.mark.parametrize("jax", [False, True])
def test_tf_data_leaves_the_accelerators_to_keras_unless_jax_came_first(jax):
    assert run(IMPORTED.format(", jax" * jax)).stdout == f"{jax}\n"


def test_tensorflow_is_hidden_from_accelerators():
    assert tf.config.get_visible_devices("GPU") == []
    assert tf.config.get_visible_devices("TPU") == []
    assert tf.config.get_visible_devices("CPU") != []
