"""What lies in the directory of the raw data and is in no split is named once."""

import pytest
from raw_data.folders import RawImageFolder
from raw_data.imagenet import RawImagenet
from raw_data.pixels import RawCifar, RawMnist

from converters import tfrecord_to_gcs
from pipeline.shards.frames import frame

pytestmark = pytest.mark.usefixtures("without_beam")


class Records:
    """A TFRecord file."""

    def __init__(self, directory):
        self.directory = directory

    def write(self):
        self.directory.mkdir()
        (self.directory / "train.tfrecord").write_bytes(frame(b"a"))
        return self

    def convert(self, out, *flags):
        tfrecord_to_gcs.main([f"--raw-data-dir={self.directory}", f"--output={out}", *flags])


@pytest.mark.parametrize("kind", [RawImageFolder, RawImagenet, RawMnist, RawCifar, Records])
def test_files_and_folders_that_are_in_no_split_are_named(tmp_path, out, capsys, kind):
    raw = kind(tmp_path / "raw")
    dry = [] if kind in (RawMnist, Records) else ["--dry-run"]  # which uncompresses nothing
    written = raw.write("train") if kind is RawImageFolder else raw.write()
    written.convert(out, *dry)
    assert "not read" not in capsys.readouterr().out
    (tmp_path / "raw" / "extra.bin").touch()
    (tmp_path / "raw" / "more").mkdir()
    (tmp_path / "raw" / ".hidden").touch()
    written.convert(out, *dry)
    printed = capsys.readouterr().out
    assert "note: 2 files not read: extra.bin, more. This conversion does not" in printed
    written.convert(out, *dry, "--splits=train")
    assert "extra.bin" not in capsys.readouterr().out
