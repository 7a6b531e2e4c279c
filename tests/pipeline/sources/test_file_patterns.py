"""What one text means by its files."""

import pytest

from pipeline.errors import OptionError
from pipeline.sources.named_splits import matching_files
from pipeline.storage.local import LocalStorage


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name in ("b.bin", "a.bin", "a[1].bin", "notes.txt", ".hidden.bin"):
        (tmp_path / name).write_bytes(b"xyz")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("{}/a.bin", ["a.bin"]),
        ("{}/*.bin", ["a.bin", "a[1].bin", "b.bin"]),
        ("{}/[ab].bin", ["a.bin", "b.bin"]),
        ("{}/a[1].bin", ["a[1].bin"]),
        ("{}", ["a.bin", "a[1].bin", "b.bin", "notes.txt"]),
        ("{}/", ["a.bin", "a[1].bin", "b.bin", "notes.txt"]),
        ("*.txt", ["notes.txt"]),
        ("a.bin", ["a.bin"]),
        ("a[1].bin", ["a[1].bin"]),
        (".", ["a.bin", "a[1].bin", "b.bin", "notes.txt"]),
    ],
)
def test_a_file_a_directory_or_a_pattern_names_files(files, uri, names):
    found = matching_files(uri.format(files), LocalStorage())
    assert [path.rpartition("/")[2] for path in found] == names
    assert {stat.bytes for stat in found.values()} == {3}
    assert all(LocalStorage().read(path) == b"xyz" for path in found)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("{}/c.bin", r"c\.bin is neither a file nor a directory with files"),
        ("{}/folder", "folder is neither a file nor a directory with files"),
        ("{}/*.tfrecord", r"matches no file\. .* has: a\.bin, a\[1\]\.bin, b\.bin, notes\.txt\."),
        ("{}/*/a.bin", r"\*/a\.bin is neither a file"),
        ("nowhere/*", r"nowhere/\* matches no file\. nowhere has: nothing"),
    ],
)
def test_a_pattern_without_files_is_refused(files, uri, text):
    with pytest.raises(OptionError, match=text):
        matching_files(uri.format(files), LocalStorage())
