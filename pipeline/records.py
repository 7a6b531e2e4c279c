"""Where users of other frameworks start: the records of any source by number, as bytes or as NumPy arrays.

Unusual features of TFDS need TFDS and TensorFlow. docs/frameworks.md shows PyTorch, grain, Keras and NumPy."""

from pipeline.sources.dataset import Dataset, Examples
from pipeline.sources.open_dataset import Data, open_dataset

__all__ = ["Data", "Dataset", "Examples", "open_dataset"]
