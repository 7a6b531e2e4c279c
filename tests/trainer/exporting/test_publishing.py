"""Exports appear whole or not at all, under growing numbers, on a disk and in a bucket."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.storage.schemes import open_storage
from trainer.exporting import publishing
from trainer.exporting.publishing import Exports

NOW = 1_800_000_000


@pytest.fixture(params=["disk", "bucket"])
def exports(request, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing.time, "time", lambda: NOW + 0.9)
    place = str(tmp_path / "exports") if request.param == "disk" else f"{request.getfixturevalue('bucket')}/exports"
    return Exports(place)


def make(directory, content=b"graph"):
    model = directory / "model"
    (model / "variables").mkdir(parents=True)
    (model / "assets.extra").mkdir()
    (model / "saved_model.pb").write_bytes(content)
    (model / "variables" / "data").write_bytes(b"numbers" * 10**6)
    (model / "assets.extra" / "infeed.json").write_text(json.dumps({"origin": {"metrics": {"loss": 0.5}}}))
    return model


def publish(exports, content=b"graph"):
    with exports.unpublished() as directory:
        return exports.publish(make(directory, content))


def test_it_has_the_seconds_for_its_name_and_all_its_files(exports):
    path, storage = publish(exports), open_storage(exports.path)
    assert path == f"{exports.path}/{NOW}"
    assert storage.read(f"{path}/saved_model.pb") == b"graph"
    assert storage.read(f"{path}/variables/data") == b"numbers" * 10**6
    assert exports.origin(NOW) == {"metrics": {"loss": 0.5}}


def test_names_grow_even_within_a_second_and_only_the_newest_are_kept(exports):
    paths = [publish(exports, content) for content in (b"1", b"2", b"3")]
    assert paths == [f"{exports.path}/{NOW + place}" for place in range(3)]
    exports.keep(2)
    assert exports.numbers() == [NOW + 1, NOW + 2]
    files, directories = open_storage(exports.path).entries(exports.path)
    assert (list(files), list(directories)) == ([], [str(NOW + 1), str(NOW + 2)])


def test_what_was_not_published_leaves_nothing(exports):
    with pytest.raises(RuntimeError), exports.unpublished() as directory:
        make(directory)
        raise RuntimeError
    assert exports.numbers() == []
    assert open_storage(exports.path).entries(exports.path) == ({}, [])


def test_in_a_bucket_the_graph_comes_last_and_an_upload_that_fails_leaves_nothing(bucket, tmp_path, monkeypatch):
    exports, copied = Exports(f"{bucket}/exports"), []
    copy = publishing._copy

    def until_the_graph(storage, file, path):
        copied.append(file.name)
        if file.name == "saved_model.pb":
            raise KeyboardInterrupt
        copy(storage, file, path)

    monkeypatch.setattr(publishing, "_copy", until_the_graph)
    with pytest.raises(KeyboardInterrupt):
        publish(exports)
    assert sorted(copied[:-1]) == ["data", "infeed.json"]
    assert open_storage(exports.path).entries(exports.path) == ({}, [])
    monkeypatch.setattr(publishing, "_copy", copy)
    publish(exports)
    assert len(exports.numbers()) == 1


UNFINISHED = """
import sys, time
from trainer.exporting.publishing import Exports

with Exports(sys.argv[1]).unpublished() as directory:
    (directory / "model").mkdir()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_goes_with_the_next_export_but_not_what_another_one_makes(tmp_path):
    exports = Exports(str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", UNFINISHED, str(tmp_path)], stdout=subprocess.PIPE) as making:
        assert making.stdout
        assert making.stdout.readline() == b"ready\n"
        publish(exports)
        (left,) = tmp_path.glob(".unpublished-*")
        assert (left / "model").exists()
        making.kill()
    publish(exports)
    assert not list(tmp_path.glob(".unpublished-*"))
    assert len(exports.numbers()) == 2


def test_a_place_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot create exports in .*/file/below: Not a directory"):
        publish(Exports(str(tmp_path / "file" / "below")))
    assert Path(tmp_path / "file").is_file()


def test_what_a_killed_upload_left_is_no_export_and_goes_after_a_day(exports):
    storage, days = open_storage(exports.path), 24 * 3600
    for number in (NOW - days - 1, NOW - 60):
        with storage.publish(f"{exports.path}/{number}/assets.extra/infeed.json") as sink:
            sink.write(b"{}")
    assert exports.numbers() == []
    publish(exports)
    exports.keep(1)
    _, directories = storage.entries(exports.path)
    assert list(directories) == [str(NOW - 60), str(NOW)]
