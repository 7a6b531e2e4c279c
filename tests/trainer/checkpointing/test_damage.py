"""A damaged checkpoint is named, with a way out; it is never skipped and never a model of other numbers."""

import gc
import inspect
import json
import os
import random
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

from pipeline.errors import CheckpointError, StorageError
from trainer.checkpointing.contents import read_array
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.task import Variables
from trainer.trainer import Trainer

NEWEST = "run/checkpoints/20"
WAY_OUT = (
    r" --restore-step=10 \(restore_step in the TrainerConfig\) resumes from the one before it\."
)


def cut_short(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path, bit=None):
    data = bytearray(path.read_bytes())
    bit = len(data) * 4 if bit is None else bit
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def remove(path):
    path.unlink()


def no_tree(path):
    path.write_text("{}")


def one_less(path):
    page = json.loads(path.read_text())
    del page["tree_metadata"]["('variables', 'params', 'w')"]
    path.write_text(json.dumps(page))


def largest(directory):
    return max(
        (path for path in directory.rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )


DAMAGE = {  # file of the newest checkpoint, what becomes of it -> what is said
    ("contents/metadata", flip): r"contents/metadata(: its checksum| is not JSON)",
    ("contents/metadata", cut_short): "contents/metadata is not JSON",
    ("contents/metadata", remove): "contents/metadata is missing",
    ("state/manifest.ocdbt", flip): "cannot read .*manifest.ocdbt",
    ("state/manifest.ocdbt", remove): "cannot read .*/20: NOT_FOUND",
    ("state/_METADATA", cut_short): "state/_METADATA is not JSON",
    ("state/_METADATA", remove): "state/_METADATA is missing",
    ("state/_METADATA", no_tree): "state/_METADATA: it does not describe a tree of arrays",
    ("state/_METADATA", one_less): "state/_METADATA: it lacks variables/params/w",
    ("array data", flip): "restored values of variables/params/w differ from saved ones",
    ("array data", cut_short): "cannot read .*/20: .*variables.params.w",
    ("array data", remove): "cannot read .*/20: ",
}


@pytest.fixture(autouse=True, scope="module")
def _no_late_words():
    """After a read that failed Orbax's tasks for the other arrays stay half-run, and their event loop is closed."""
    told = sys.unraisablehook

    def tell(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed" and not inspect.iscoroutine(
            unraisable.object
        ):
            told(unraisable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", tell)
        yield
        gc.collect()


@pytest.mark.parametrize(
    ("file", "damage"), DAMAGE, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_damaged_newest_checkpoint_is_named_with_the_one_to_go_back_to(
    save, state_at, config, tmp_path, file, damage
):
    settings = config()
    save(settings, 10, 20)
    newest = tmp_path / NEWEST
    damage(largest(newest / "state") if file == "array data" else newest / file)
    with pytest.raises(CheckpointError, match=DAMAGE[file, damage]) as told:
        checkpoints = CheckpointManager(settings)
        checkpoints.restore(checkpoints.resume_step(), state_at())
    assert str(newest) in str(told.value)
    assert told.match(WAY_OUT)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "file", ["contents/metadata", "state/_METADATA", "state/manifest.ocdbt", "array data"]
)
def test_a_named_pipe_in_place_of_a_file_is_refused_rather_than_waited_for(
    save, state_at, config, tmp_path, file
):
    save(config(), 10)
    step = tmp_path / "run/checkpoints/10"
    pipe = largest(step / "state") if file == "array data" else step / file
    pipe.unlink()
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match=rf"{pipe} is a directory or a device, not a file\."):
        CheckpointManager(config()).restore(10, state_at())
    if file not in ("contents/metadata", "state/_METADATA"):  # which it does not read
        with pytest.raises(StorageError, match=rf"{pipe} is a directory or a device, not a file\."):
            read_array(str(step), "variables/params/w", {"sum": 0})


def test_every_flipped_bit_of_the_stored_numbers_is_found(state_at, config, tmp_path):
    # incompressible, so it is stored verbatim
    noise = np.random.default_rng(0).integers(0, 256, 1 << 14, np.uint8)
    state = state_at(10, devices=1)
    state = state._replace(
        variables=Variables({"noise": jax.device_put(noise, state.step.sharding)})
    )
    with CheckpointManager(config()) as checkpoints:
        checkpoints.resume_step()
        checkpoints.save(Saved(10, state, {"position": 10}, config().to_json()))
    files = [path for path in (tmp_path / "run/checkpoints/10/state").rglob("*") if path.is_file()]
    (stored,) = (path for path in files if noise.tobytes() in path.read_bytes())
    whole = stored.read_bytes()
    begin, draw = whole.index(noise.tobytes()), random.Random(0)
    for bit in [0, 8 * noise.size - 1, *(draw.randrange(8 * noise.size) for _ in range(10))]:
        flip(stored, 8 * begin + bit)
        with pytest.raises(CheckpointError, match=r"cannot read|differ from saved ones"):
            CheckpointManager(config()).restore(10, state)
        stored.write_bytes(whole)
    np.testing.assert_array_equal(
        CheckpointManager(config()).restore(10, state).state.variables.params["noise"], noise
    )


def test_training_past_a_damaged_checkpoint_is_an_error_until_it_is_told_to_go_back(
    dense_task, vector_input, config, tmp_path, caplog
):
    caplog.set_level("INFO", "trainer")
    settings = config(checkpoint_every_steps=10)
    device = jax.devices()[:1]
    straight = Trainer(dense_task, settings, device).train(vector_input, max_steps=20)
    remove(tmp_path / NEWEST / "contents/metadata")
    with pytest.raises(CheckpointError, match=WAY_OUT):
        Trainer(dense_task, settings, device).train(vector_input, max_steps=30)
    went_back = Trainer(dense_task, replace(settings, restore_step=10), device).train(
        vector_input, max_steps=20
    )
    assert (went_back.start_step, went_back.metrics) == (10, straight.metrics)
    assert (
        "resuming from the checkpoint of step 10; changed: restore_step None -> 10" in caplog.text
    )
    assert CheckpointManager(settings).steps() == [10, 20]
