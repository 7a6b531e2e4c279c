"""Trainings and evaluations leave a user's files, directories and links in a work directory as they are."""

import contextlib
import shutil

import pytest
from foreign_trees import plant, seen, trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep import SWEEP

from pipeline.errors import CheckpointError, InfeedError, OptionError, StorageError
from pipeline.storage.schemes import open_storage
from trainer.checkpointing.listing import finished_steps
from trainer.config import TrainerConfig
from trainer.trainer import Trainer

IN_A_WORKDIR = """
checkpoints checkpoints/2023 checkpoints/0 checkpoints/007 checkpoints/3 checkpoints/photos
checkpoints/latest checkpoints/8/notes checkpoints/10 checkpoints/5.orbax
train train/metrics.jsonl train/metrics.jsonl.bak train/notes eval eval/metrics.jsonl
metrics.jsonl export profile eval_result.json train_result.json predictions.jsonl description.json
evaluations.json segments.jsonl _owner/notes 2023/a.jpg
""".split()  # noqa: SIM905
RUNS = {  # where each ends, and its settings
    "a first training": (2, {}),
    "a resumed training": (6, {"keep_max": 1}),
    "a training that goes back": (5, {"restore_step": 2}),
    "an evaluation": (0, {}),
}


@pytest.fixture(scope="session")
def trained(dense_task, vector_input, tmp_path_factory):
    """A work directory with the checkpoints of steps 2 and 4. Do not change it: copy."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    Trainer(dense_task, _settings(workdir)).train(vector_input, max_steps=4)
    return workdir


def _settings(workdir, **changes):
    given = {"global_batch_size": 16, "checkpoint_every_steps": 2, "keep_max": 9}
    return TrainerConfig(workdir=str(workdir), **given | changes)


@pytest.mark.parametrize(
    "name",
    ["a first training", *(pytest.param(name, marks=pytest.mark.slow) for name in [*RUNS][1:])],
)
@settings(
    max_examples=100 if SWEEP else 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_run_changes_what_others_put_into_its_work_directory(
    name, data, trained, dense_task, vector_input, tmp_path_factory
):
    first, directory = name == "a first training", tmp_path_factory.mktemp("tree")
    # In a directory that is marked, the names of these files are ours.
    names = [each for each in IN_A_WORKDIR if first or not each.endswith(("json", "s.jsonl"))]
    tree = data.draw(trees(names))
    workdir = directory / "run"
    if first:
        workdir.mkdir()
    else:
        shutil.copytree(trained, workdir)
    paths = plant(workdir, directory, tree)
    there, (steps, changes) = seen(paths), RUNS[name]
    trainer = Trainer(dense_task, _settings(workdir, **changes))
    with contextlib.suppress(InfeedError):
        trainer.train(vector_input, max_steps=steps) if steps else trainer.evaluate(vector_input)
    assert seen(paths) == there
    shutil.rmtree(directory)


FILES = "predictions.jsonl description.json segments.jsonl train/metrics.jsonl eval_result.json"


def test_a_directory_with_a_file_that_runs_replace_is_no_work_directory(
    dense_task, vector_input, trained, tmp_path
):
    for file in FILES.split():
        workdir = tmp_path / file.partition(".")[0]
        (workdir / file).parent.mkdir(parents=True)
        (workdir / file).write_text("mine")
        trainer = Trainer(dense_task, _settings(workdir))
        says = f"has a file {file}, which no run of infeed wrote"
        with pytest.raises(OptionError, match=says):
            trainer.train(vector_input, max_steps=2)
        assert [path for path in workdir.rglob("*") if path.is_file()] == [workdir / file]
        assert (workdir / file).read_text() == "mine"
    with pytest.raises(OptionError, match=says):
        trainer.evaluate(vector_input, checkpoint_path=str(trained))


def test_an_evaluation_may_be_repeated_where_only_evaluations_were_written(
    dense_task, vector_input, trained, tmp_path
):
    for _ in range(2):
        trainer = Trainer(dense_task, _settings(tmp_path))
        trainer.evaluate(vector_input, checkpoint_path=str(trained))
        (tmp_path / "predictions.jsonl").touch()


NONE = "has the name of a checkpoint, but is none"


@pytest.mark.parametrize("name", ["2023", "007"])
def test_a_directory_with_the_name_of_a_checkpoint_is_refused_before_the_training(
    name, dense_task, vector_input, tmp_path
):
    (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / name / "photo.jpg").touch()
    with pytest.raises(CheckpointError, match=f"checkpoints/{name} {NONE}"):
        Trainer(dense_task, _settings(tmp_path)).train(vector_input, max_steps=2)


def test_lines_that_no_run_wrote_are_neither_cut_nor_continued(dense_task, vector_input, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "_owner").mkdir()
    (tmp_path / "train/metrics.jsonl").write_text('{"epoch": 1}\n{"step": 900}\n{"st')
    not_ours = r"train/metrics\.jsonl has not been written by a run of infeed\. Move it"
    with pytest.raises(StorageError, match=not_ours):
        Trainer(dense_task, _settings(tmp_path)).train(vector_input, max_steps=2)
    assert (tmp_path / "train/metrics.jsonl").read_text() == '{"epoch": 1}\n{"step": 900}\n{"st'


@pytest.mark.slow
def test_in_a_bucket_only_unfinished_checkpoints_are_removed(bucket, dense_task, vector_input):
    storage, checkpoints = open_storage(bucket), f"{bucket}/run/checkpoints"
    users = [f"{checkpoints}/photos/a.jpg", f"{checkpoints}/latest"]
    users += [f"{bucket}/run/train/metrics.jsonl.bak"]
    unfinished = [f"{checkpoints}/1/contents/metadata", f"{checkpoints}/1/_CHECKPOINT_METADATA"]
    for path in users + unfinished:
        storage.create(path, b"x")
    Trainer(dense_task, _settings(f"{bucket}/run", keep_max=1)).train(vector_input, max_steps=4)
    assert [path for path in users if not storage.exists(path)] == []
    assert not storage.exists(f"{checkpoints}/1/contents/metadata")
    assert finished_steps(f"{bucket}/run") == [4]


def test_a_checkpoint_that_is_a_link_is_kept(dense_task, vector_input, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    moved = (tmp_path / "run/checkpoints/2").rename(tmp_path / "moved")
    (tmp_path / "run/checkpoints/2").symlink_to(moved)
    Trainer(dense_task, _settings(tmp_path / "run", keep_max=1)).train(vector_input, max_steps=6)
    assert finished_steps(str(tmp_path / "run")) == [2, 6]
    assert (moved / "contents").is_dir()


@pytest.mark.parametrize(
    "parts", [["contents/thesis.txt"], ["_CHECKPOINT_METADATA", "default/manifest.ocdbt"]]
)
def test_a_checkpoint_of_another_program_is_refused_rather_than_removed(
    parts, dense_task, vector_input, trained, tmp_path
):
    shutil.copytree(trained, tmp_path / "run")
    for part in parts:
        path = tmp_path / "run/checkpoints/1" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    trainer = Trainer(dense_task, _settings(tmp_path / "run", keep_max=1))
    with pytest.raises(CheckpointError, match=f"checkpoints/1 {NONE}"):
        trainer.train(vector_input, max_steps=6)
    assert all((tmp_path / "run/checkpoints/1" / part).read_text() == "mine" for part in parts)


def test_a_link_in_place_of_metrics_is_not_written_through(
    dense_task, vector_input, trained, tmp_path
):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "mine.jsonl").write_text('{"step": 1}\n{"step": 2, "half')
    (tmp_path / "run/eval").mkdir(exist_ok=True)
    (tmp_path / "run/eval/metrics.jsonl").symlink_to(tmp_path / "mine.jsonl")
    link = r"eval/metrics\.jsonl is a link, through which nothing is written"
    with pytest.raises(StorageError, match=link):
        Trainer(dense_task, _settings(tmp_path / "run")).evaluate(vector_input)
    assert (tmp_path / "mine.jsonl").read_text() == '{"step": 1}\n{"step": 2, "half'


def test_going_back_past_a_checkpoint_that_is_a_link_is_refused_at_the_start(
    dense_task, vector_input, trained, tmp_path
):
    shutil.copytree(trained, tmp_path / "run")
    moved = (tmp_path / "run/checkpoints/4").rename(tmp_path / "moved")
    (tmp_path / "run/checkpoints/4").symlink_to(moved)
    trainer = Trainer(dense_task, _settings(tmp_path / "run", restore_step=2))
    link = r"restore_step=2 removes .* but \S+/checkpoints/4 is a link\. Remove it"
    with pytest.raises(CheckpointError, match=link):
        trainer.train(vector_input, max_steps=6)


def test_a_directory_in_a_bucket_with_a_name_of_ours_is_not_an_unfinished_checkpoint(
    bucket, dense_task, vector_input
):
    storage, path = open_storage(bucket), f"{bucket}/run/checkpoints/5/state/thesis.txt"
    storage.create(path, b"mine")
    with pytest.raises(CheckpointError, match=f"checkpoints/5 {NONE}"):
        Trainer(dense_task, _settings(f"{bucket}/run")).train(vector_input, max_steps=2)
    assert storage.read(path) == b"mine"
