"""infeed export-weights: the weights of a run as a file that other libraries load."""

import json

import numpy as np
import optax
import pytest
from infeed_door import run_infeed
from published_models import FILES, PUBLISHED, model_of
from safetensors import safe_open
from safetensors.numpy import load_file

from pipeline.errors import InfeedError
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_loading import open_weights
from trainer.checkpoints import export_weights, get_variable_names, get_variable_value
from trainer.config import TrainerConfig
from trainer.nnx_task import nnx_task
from trainer.trainer import Trainer

TIMM = PUBLISHED / "timm_vit.safetensors"


@pytest.fixture(scope="module")
def run(tmp_path_factory, dense_task, vector_input):
    """A work directory of a model with averages, and its evaluation."""
    workdir = str(tmp_path_factory.mktemp("run") / "model")
    config = TrainerConfig(workdir=workdir, global_batch_size=16, ema_decay=0.5)
    trainer = Trainer(dense_task, config)
    trainer.train(vector_input, steps=1)
    return workdir, trainer.evaluate(vector_input)


def metadata(path):
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["infeed"])


def test_the_file_has_the_averages_that_evaluations_use_and_what_was_measured_of_them(
    run, tmp_path
):
    workdir, result = run
    output = str(tmp_path / "model.safetensors")
    assert export_weights(workdir, output) == 1
    weights = open_weights(output)
    assert [f"params/{name}" for name in weights.arrays] == get_variable_names(workdir)
    for name in weights.arrays:
        average = get_variable_value(workdir, f"ema/{name}", all_arrays=True)
        assert weights.read(name).tobytes() == average.tobytes()
    about = metadata(output)
    assert (about["step"], about["model"]) == (1, "ema")
    evaluation = about["evaluation"]
    assert evaluation["loss"] == pytest.approx(result.metrics["loss"])
    assert (evaluation["records"], evaluation["proven"]) == (100, True)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"output": "there.safetensors"},
            r"there\.safetensors exists\. Remove it, or give another",
        ),
        ({"output": "model.bin"}, r"model\.bin must end in \.safetensors"),
        ({"output": "az://b/a.safetensors"}, "az:// is not supported"),
        ({"names": "keras"}, r"names='keras' is not one of own, timm, torchvision, transfo"),
        (
            {"names": "timm"},
            r"names='timm' is not one of own: this model differs from timm's in 9 arrays \(a, b, ",
        ),
        (
            {"step": "best"},
            r"no best checkpoint: its keep_best is None\. Give one of the steps \[1\]",
        ),
        ({"model": "average"}, "model='average' is not one of params, ema"),
        ({"step": 7}, r"has no checkpoint of step 7\. It has: \[1\]"),
        ({"checkpoint_path": "nowhere"}, "checkpoint_path='nowhere' has no checkpoint"),
    ],
)
def test_mistakes_are_errors_and_leave_the_files_as_they_are(
    run, tmp_path, monkeypatch, settings, text
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.safetensors").write_bytes(b"mine")
    with pytest.raises(InfeedError, match=text):
        export_weights(**{"checkpoint_path": run[0], "output": "a.safetensors"} | settings)
    assert [path.name for path in tmp_path.iterdir()] == ["there.safetensors"]
    assert (tmp_path / "there.safetensors").read_bytes() == b"mine"


def test_a_run_without_averages_writes_its_parameters(dense_task, vector_input, config, tmp_path):
    run = config()
    state = Trainer(dense_task, run).train(vector_input, steps=1).state
    with pytest.raises(InfeedError, match="model='ema' is not one of params"):
        export_weights(run.workdir, str(tmp_path / "a.safetensors"), model="ema")
    export_weights(run.workdir, str(tmp_path / "a.safetensors"))
    for name, array in load_file(tmp_path / "a.safetensors").items():
        np.testing.assert_array_equal(array, state.variables.params[name])
    about = {"step": 1, "model": "params", "classes": None, "evaluation": None}
    assert metadata(tmp_path / "a.safetensors") == about


@pytest.mark.slow
def test_weights_that_came_from_timm_are_written_for_timm_bit_by_bit(tmp_path, monkeypatch, capsys):
    def loss(model, batch):
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), logits

    batch = {"image": np.zeros((8, 32, 32, 3), np.uint8), "label": np.zeros(8, np.int32)}
    task = nnx_task(lambda rngs: model_of(FILES["timm_vit"], rngs), loss, optax.set_to_zero())
    config = TrainerConfig(workdir=str(tmp_path / "run"), global_batch_size=8, ema_decay=0.5)
    start = WarmStart(init_from=str(TIMM))
    Trainer(task, config, warm_start=start).train(lambda ctx: [batch], steps=1)
    output = tmp_path / "model.safetensors"
    with pytest.raises(
        InfeedError, match="'torchvision' is not one of own, timm, transformers: this model differs"
    ):
        export_weights(config.workdir, str(output), names="torchvision")
    command = f"export-weights {tmp_path}/run --output {output} --names=timm --model=params"
    assert run_infeed(monkeypatch, capsys, *command.split())[0] == 0
    written, published = load_file(output), load_file(TIMM)
    assert written.keys() == published.keys()
    for name, array in published.items():
        assert (written[name].shape, written[name].dtype) == (array.shape, array.dtype)
        assert written[name].tobytes() == array.tobytes(), name
