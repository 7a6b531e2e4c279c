"""A Vision Transformer of the recipe images: split over eight devices, and fine-tuned from a file, exported and served."""

import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from infeed import load
from pipeline.tf_cpu import tf
from trainer.__main__ import main
from trainer.models.pixels import STATISTICS
from trainer.models.vit import VARIANTS, VITS, Vit, VitShape

pytestmark = pytest.mark.slow


def losses(workdir):
    lines = (workdir / "train" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


EIGHT = (
    "--num-devices 8 --mesh data=2,fsdp=2,model=2 --remat full --partition layers/up/*=None,model"
)
EIGHT += " layers/down/kernel=None,model,fsdp"


def test_on_eight_devices_with_fsdp_and_rematerialization_it_trains_as_on_one(run_forked, tmp_path):
    command = "-m trainer images --tiny --model vit_ti16 --size 32 --max-steps 3 --warmup 0"
    command += " --platform cpu --workdir"
    for name, more in {"one": "", "eight": EIGHT}.items():
        words = [*command.split(), f"{tmp_path}/{name}", *more.split()]
        code, printed = run_forked(words, timeout=200)
        assert code == 0, printed
    assert losses(tmp_path / "eight") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


SHAPE = VitShape(2, 16, 2)
OPTIONS = "--model vit_s16 --vit big_vision --patch 8"


@pytest.fixture(scope="module")
def tuned(digits, tmp_path_factory):
    """The file of weights, and the run whose head was trained on digits and exported.

    The size and the normalization of the images are what a file beside the weights states, which is gone afterwards.
    """
    directory = tmp_path_factory.mktemp("tuned")
    model = Vit(
        VitShape(2, 16, 2, patch=8, **VARIANTS["big_vision"]),
        7,
        32,
        nnx.Rngs(1),
        statistics=STATISTICS["imagenet"],
    )
    leaves = nnx.to_flat_state(nnx.state(model, nnx.Param))
    arrays = {"/".join(map(str, path)): np.asarray(leaf.get_value()) for path, leaf in leaves}
    save_file(arrays, directory / "vit.safetensors")
    mean, std = STATISTICS["imagenet"]
    description = directory / "config.json"
    description.write_text(json.dumps({"input_size": [3, 32, 32], "mean": mean, "std": std}))
    data = ["--data-dir", str(digits[1]), "--workdir", f"{directory}/run"]
    training = f"--init-from {directory}/vit.safetensors --init-exclude head/* --freeze [!h]*"
    command = ["images", *data, *OPTIONS.split(), *training.split(), "--learning-rate=0.2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VITS, "vit_s16", SHAPE)
        assert main([*command, "--max-steps=20", f"--export-path={directory}/export"]) == 0
        description.unlink()
        assert main(["images", *data, "--mode=predict"]) == 0  # with the options of the run
        yield directory, load(f"{directory}/run")


def test_only_the_head_is_trained(tuned):
    directory, model = tuned
    assert (model.recipe.size, model.recipe.normalization) == (32, "imagenet")
    for name, array in load_file(directory / "vit.safetensors").items():
        assert np.array_equal(model.variables.params[name], array) != name.startswith("head")


def test_tensorflow_alone_serves_the_probabilities_of_the_model(tuned):
    directory, model = tuned
    (saved,) = Path(directory, "export").iterdir()
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    images[1:] //= np.array([1, 2, 4, 8], np.uint8)[:, None, None, None]
    served = tf.saved_model.load(str(saved)).signatures["arrays"](image=tf.constant(images))
    expected = model.predict({"image": images})["probability"]
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(served["probability"], expected, rtol=0, atol=1e-5)
    found = json.loads(Path(saved, "assets.extra/infeed.json").read_text())
    assert found["verified"]["difference"]["arrays"] < 1e-5
