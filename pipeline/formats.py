"""How files without metadata are split into records: the `format` of open_dataset."""

from dataclasses import dataclass

import numpy as np

from pipeline.checks import check_number
from pipeline.errors import OptionError
from pipeline.shards.schema import Schema
from pipeline.spec import feature_specs

__all__ = ["FixedLength", "Format", "TFRecords", "TextLines"]


@dataclass(frozen=True)
class FixedLength:
    """Records of equal length, between a header and a footer of each file.

    record: the number of bytes in a record, which is then one opaque value; or a NumPy dtype with
    named fields, each a feature. For CIFAR-10: np.dtype([("label", "u1"), ("image", "u1", (3, 32,
    32))]). header_bytes, footer_bytes: to skip at the beginning and the end of each file."""

    record: int | np.dtype
    header_bytes: int = 0
    footer_bytes: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.record, np.dtype):
            feature_specs(self.record)
        elif not isinstance(self.record, int) or not 1 <= self.record < 2**32:
            raise OptionError(
                f"record={self.record!r} must be a number of bytes, 1 to 2**32 - 1, or an np.dtype."
            )
        check_number("header_bytes", self.header_bytes, at_least=0)
        check_number("footer_bytes", self.footer_bytes, at_least=0)

    @property
    def record_bytes(self) -> int:
        """Bytes in a record."""
        return self.record.itemsize if isinstance(self.record, np.dtype) else self.record


@dataclass(frozen=True)
class TFRecords:
    """TFRecord files, plain, GZIP or ZLIB. schema: of the tf.train.Examples; None infers it from a
    sample."""

    schema: Schema | None = None


@dataclass(frozen=True)
class TextLines:
    r"""Lines of text, plain or GZIP, each the bytes value `key`.

    Split like tf.data.TextLineDataset: without \n, without any \r, and text after the last \n is a
    line unless it is empty. An empty line is a record."""

    key: str = "text"


Format = FixedLength | TFRecords | TextLines
"""What `open_dataset` takes for files that no manifest describes."""
