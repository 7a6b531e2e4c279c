"""Exports appear whole or not at all, under growing numbers, on a disk and in a bucket."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import OptionError, StorageError
from pipeline.storage.schemes import open_storage
from trainer.serving import publishing
from trainer.serving.publishing import ExportOptions, Exports, check_place

NOW = 1_800_000_000
ABOUT = {"origin": {"metrics": {"loss": 0.5}}, "signatures": {}, "verified": {}}
DATA = "variables.data-00000-of-00001"


@pytest.fixture(params=["disk", "bucket"])
def exports(request, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing.time, "time", lambda: NOW + 0.9)
    place = (
        str(tmp_path / "exports")
        if request.param == "disk"
        else f"{request.getfixturevalue('bucket')}/exports"
    )
    return Exports(place)


def make(directory, content=b"graph"):
    model = directory / "model"
    (model / "variables").mkdir(parents=True)
    (model / "assets.extra").mkdir()
    (model / "saved_model.pb").write_bytes(content)
    (model / "fingerprint.pb").touch()
    (model / "variables" / DATA).write_bytes(b"numbers" * 10**6)
    return model


def publish(exports, content=b"graph"):
    with exports.unpublished() as directory:
        return exports.publish(make(directory, content), ABOUT)


def test_an_export_is_named_by_its_time_and_has_all_files(exports):
    path, storage = publish(exports), open_storage(exports.path)
    assert path == f"{exports.path}/{NOW}"
    assert storage.read(f"{path}/saved_model.pb") == b"graph"
    assert storage.read(f"{path}/variables/{DATA}") == b"numbers" * 10**6
    assert exports.origin(NOW) == {"metrics": {"loss": 0.5}}


def test_names_grow_even_within_a_second_and_only_the_newest_are_kept(exports):
    paths = [publish(exports, content) for content in (b"1", b"2", b"3")]
    assert paths == [f"{exports.path}/{NOW + place}" for place in range(3)]
    exports.keep(2)
    assert exports.numbers() == [NOW + 1, NOW + 2]
    files, directories = open_storage(exports.path).entries(exports.path)
    assert (list(files), list(directories)) == ([], [str(NOW + 1), str(NOW + 2)])


def test_a_number_that_is_taken_by_something_else_is_passed_over(exports):
    write(exports.path, {f"{NOW}/assets.extra/infeed.json": b"{}"})
    assert publish(exports) == f"{exports.path}/{NOW + 1}"


def test_an_unpublished_export_leaves_nothing(exports):
    with pytest.raises(RuntimeError), exports.unpublished() as directory:
        make(directory)
        raise RuntimeError
    assert exports.numbers() == []
    assert open_storage(exports.path).entries(exports.path) == ({}, [])


def test_the_graph_is_uploaded_last_and_a_failed_upload_leaves_nothing(
    bucket, tmp_path, monkeypatch
):
    exports, copied = Exports(f"{bucket}/exports"), []
    copy = publishing.copy_file

    def until_the_graph(file, path):
        copied.append(Path(file).name)
        if path.endswith("/saved_model.pb"):
            raise KeyboardInterrupt
        copy(file, path)

    monkeypatch.setattr(publishing, "copy_file", until_the_graph)
    with pytest.raises(KeyboardInterrupt):
        publish(exports)
    assert copied[:-1] == ["fingerprint.pb", DATA]
    assert open_storage(exports.path).entries(exports.path) == ({}, [])
    monkeypatch.setattr(publishing, "copy_file", copy)
    publish(exports)
    assert len(exports.numbers()) == 1


UNFINISHED = """
import sys, time
from trainer.serving.publishing import ExportOptions
from trainer.serving.publishing import Exports, check_place

with Exports(sys.argv[1]).unpublished() as directory:
    (directory / "model").mkdir()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_leftovers_of_killed_exports_are_removed_but_not_those_of_running_ones(tmp_path):
    exports = Exports(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", UNFINISHED, str(tmp_path)], stdout=subprocess.PIPE
    ) as making:
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
    with pytest.raises(
        StorageError, match="cannot create exports in .*/file/below: Not a directory"
    ):
        publish(Exports(str(tmp_path / "file" / "below")))
    assert Path(tmp_path / "file").is_file()


def test_an_interrupted_upload_is_not_an_export_and_is_removed_after_a_day(exports):
    storage, days = open_storage(exports.path), 24 * 3600
    for number in (NOW - days - 1, NOW - 60):
        with storage.publish(f"{exports.path}/{number}/assets.extra/infeed.json") as sink:
            sink.write(json.dumps(ABOUT | {"export": number}).encode())
    assert exports.numbers() == []
    publish(exports)
    exports.keep(1)
    _, directories = storage.entries(exports.path)
    assert list(directories) == [str(NOW - 60), str(NOW)]


def write(path, files):
    for name, content in files.items():
        with open_storage(path).publish(f"{path}/{name}") as sink:
            sink.write(content)


USERS = {
    "7/victim.jpg": b"7",
    "2023/a.jpg": b"a",
    "0/saved_model.pb": b"another tool's",
    "5/assets.extra/infeed.json": b"{}",
}


def test_directories_with_a_number_for_their_name_that_no_export_made_are_never_removed(exports):
    write(exports.path, USERS)
    paths = [publish(exports) for _ in range(3)]
    copied = json.loads(open_storage(exports.path).read(f"{paths[0]}/assets.extra/infeed.json"))
    write(
        exports.path,
        {"8/saved_model.pb": b"copy", "8/assets.extra/infeed.json": json.dumps(copied).encode()},
    )
    exports.keep(1)
    assert exports.numbers() == [0, 8, NOW + 2]
    assert {
        name: open_storage(exports.path).read(f"{exports.path}/{name}") for name in USERS
    } == USERS


def test_user_files_inside_an_export_are_never_removed(exports, caplog):
    paths = [publish(exports) for _ in range(2)]
    write(paths[0], {"notes.txt": b"mine", "variables/more": b"mine, too"})
    exports.keep(1)
    assert exports.numbers() == [NOW + 1]
    assert sorted(open_storage(paths[0]).entries(paths[0])[0]) == ["notes.txt"]
    assert list(open_storage(paths[0]).list(f"{paths[0]}/variables")) == ["more"]
    assert f"export: {paths[0]} has files that no export wrote; they stay there" in caplog.text


def test_only_assets_inside_an_export_are_removed_with_it(exports):
    listed = ["vocab.txt", "../../victim", "../victim", "infeed.json", "", 7, "missing"]
    path = publish(exports)
    about = json.loads(open_storage(path).read(f"{path}/assets.extra/infeed.json"))
    write(path, {"assets.extra/infeed.json": json.dumps(about | {"assets_extra": listed}).encode()})
    write(path, {"assets.extra/vocab.txt": b"a", "victim": b"1"})
    write(exports.path, {"victim": b"2"})
    publish(exports)
    exports.keep(1)
    storage = open_storage(path)
    assert list(storage.entries(path)[0]) == ["victim"]
    assert not storage.list(f"{path}/assets.extra")
    assert storage.exists(f"{exports.path}/victim")


def test_a_file_is_copied_from_a_disk_or_a_bucket_to_either(bucket, tmp_path):
    source = open_storage(bucket)
    with source.publish(f"{bucket}/words") as sink:
        sink.write(b"words" * 3_000_000)  # more than a piece
    publishing.check_asset("vocab.txt", f"{bucket}/words")
    for number, path in enumerate((f"{bucket}/words", str(tmp_path / "0"))):
        publishing.copy_file(path, str(tmp_path / str(number)))
        assert (tmp_path / str(number)).read_bytes() == b"words" * 3_000_000
    with pytest.raises(StorageError, match="no-words"):
        publishing.check_asset("vocab.txt", f"{bucket}/no-words")


def test_links_are_never_followed(tmp_path):
    exports, victim = Exports(str(tmp_path / "exports")), tmp_path / "victim"
    made = Path(publish(exports)).rename(victim)
    (made / "variables" / "mine").touch()
    Path(
        exports.path, str(json.loads((victim / "assets.extra/infeed.json").read_text())["export"])
    ).symlink_to(victim)
    link = Path(publish(exports))
    (link / "variables" / DATA).unlink()
    (link / "variables").rmdir()
    (link / "variables").symlink_to(victim / "variables")
    left = Path(exports.path, ".unpublished-12345678")
    left.symlink_to(victim)
    (victim / "lock").write_bytes(publishing._MARK)
    before = sorted(victim.rglob("*"))
    publish(exports)
    exports.keep(1)
    assert sorted(victim.rglob("*")) == before
    assert len(exports.numbers()) == 2  # that behind the link, and the newest


def test_a_hidden_directory_without_our_mark_stays(tmp_path):
    exports = Exports(str(tmp_path))
    write(str(tmp_path), {".unpublished-mine/lock": b"", ".unpublished-mine/notes": b"mine"})
    publish(exports)
    assert (tmp_path / ".unpublished-mine" / "notes").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("place", "files", "text"),
    [
        ("", ["manifest.json"], "is a dataset"),
        ("", ["_shards/train.plan.json"], "is a dataset"),
        ("lr[0.1]/export", [], r"has \[ or \\ in its name, which TensorFlow takes"),
        ("a\\b/export", [], r"has \[ or \\ in its name, which TensorFlow takes"),
        ("checkpoints", ["_owner/000001.json"], "/checkpoints belongs to the checkpoints of a run"),
        ("checkpoints/100", ["_owner/000001.json"], "/100 belongs to the checkpoints of a run"),
    ],
)
def test_exports_where_a_number_has_another_meaning_or_tensorflow_cannot_load_are_refused(
    exports, place, files, text
):
    path = f"{exports.path}/{place}".rstrip("/")
    if files:
        ExportOptions(Path(path))  # a directory that is only named like it
    write(exports.path, dict.fromkeys(files, b"{}"))
    with pytest.raises(OptionError, match=text):
        ExportOptions(path)


def test_exports_into_the_future_checkpoints_of_a_new_run_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="belongs to the checkpoints of a run"):
        check_place("run/../run/checkpoints", "run")
