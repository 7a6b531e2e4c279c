"""What importing the reading side does, and does not."""

import subprocess
import sys

from pipeline.tf_cpu import tf

BLOCKED = """
import sys
sys.modules["tensorflow"] = None
import pipeline.background, pipeline.caches.cache, pipeline.hosts, pipeline.orders.order, pipeline.spec
import pipeline.sources.opening
import pipeline.describe, pipeline.verify
try:
    import pipeline.datasets
except ModuleNotFoundError as e:
    print(e)
"""


def test_only_what_runs_tensorflow_needs_it_and_says_how_to_get_it():
    done = subprocess.run([sys.executable, "-c", BLOCKED], check=False, capture_output=True, text=True, timeout=60)
    assert (
        done.stdout == "Reading shards needs TensorFlow, which is not installed. "
        "Install it: pip install 'tensorflow>=2.21'.\n"
    )


def test_tensorflow_is_hidden_from_accelerators():
    assert tf.config.get_visible_devices("GPU") == []
    assert tf.config.get_visible_devices("TPU") == []
    assert tf.config.get_visible_devices("CPU") != []
