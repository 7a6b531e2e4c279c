"""Which predictions are served, and which inputs they depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.errors import ExportError, OptionError
from trainer.serving.served_function import dependencies, serve
from trainer.task import Task, Variables

STRUCT = {
    "boxes": {
        "left": jax.ShapeDtypeStruct((8,), np.int32),
        "right": jax.ShapeDtypeStruct((8,), np.int32),
    },
    "image": jax.ShapeDtypeStruct((8, 4), np.float32),
    "label": jax.ShapeDtypeStruct((8,), np.int32),
    "_mask": jax.ShapeDtypeStruct((8,), np.float32),
    "_index": jax.ShapeDtypeStruct((8,), np.int32),
}
MODEL = Variables({"w": jnp.arange(12.0).reshape(4, 3)})


def task(predict):
    return Task(lambda rng, spec: MODEL, lambda *given: None, optax.sgd(0.1), predict_fn=predict)


def scores(variables, batch):
    return batch["image"] @ variables.params["w"] * batch["_mask"][:, None]


def test_predictions_that_only_copy_inputs_are_not_served():
    def predict(variables, batch):
        return {
            "best": scores(variables, batch).argmax(-1),
            "label": batch["label"],
            "place": batch["_index"],
        }

    served = serve(task(predict), MODEL, STRUCT, None)
    assert set(served.arrays) == {"image"}
    assert served.arrays["image"].shape == (4,)
    assert set(served.predictions) == {"best"}


def test_a_served_model_accepts_any_batch_size_and_names_leaves_by_path():
    def predict(variables, batch):
        offset = batch["boxes"]["left"][:, None]
        return {"scores": {"all": scores(variables, batch) + offset}}

    served = serve(task(predict), MODEL, STRUCT, None)
    assert set(served.arrays) == {"boxes/left", "image"}
    image, left = np.ones((3, 4), np.float32), np.arange(3)
    made = served.predict(jax.tree.leaves(MODEL), {"image": image, "boxes/left": left})
    expected = image @ np.asarray(MODEL.params["w"]) + left[:, None]
    np.testing.assert_array_equal(made["scores/all"], expected)


def test_keys_select_the_served_predictions():
    def predict(variables, batch):
        made = scores(variables, batch)
        return {"scores": made, "right": made[:, 0] == batch["label"]}

    assert set(serve(task(predict), MODEL, STRUCT, ["scores"]).arrays) == {"image"}
    assert set(serve(task(predict), MODEL, STRUCT, None).arrays) == {"image", "label"}
    with pytest.raises(
        OptionError, match="the task does not predict 'score'. Did you mean 'scores'"
    ):
        serve(task(predict), MODEL, STRUCT, ["score"])


@pytest.mark.parametrize(
    ("predict", "text"),
    [
        (lambda variables, batch: {"label": batch["label"]}, "none of the predictions label depends on the model"),
        (lambda variables, batch: {"odd": scores(variables, batch) + batch["_index"][:, None]}, "odd depend on _index"),
        (lambda variables, batch: {"same": jnp.ones((8, 1)) * variables.params["w"][0, 0]}, "same depend on no array"),
    ],
    ids=["no model", "number of a record", "no record"],
)  # fmt: skip
def test_a_prediction_that_cannot_be_served_is_one_error(predict, text):
    with pytest.raises(ExportError, match=text):
        serve(task(predict), MODEL, STRUCT, None)


def separate(a, b, c):
    return a + 1, b * c, jnp.zeros(3)


def through_a_loop(a, b, c):
    return *jax.lax.fori_loop(0, 2, lambda _, carry: (carry[1], carry[0]), (a, b)), c


@jax.custom_jvp
def doubled(x, y):
    return 2 * x, y


doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (separate, [{0}, {1, 2}, set()]),
        (jax.jit(separate), [{0}, {1, 2}, set()]),
        (jax.jit(lambda a, b, c: jax.jit(separate)(c, b, a)), [{2}, {0, 1}, set()]),
        (jax.checkpoint(separate), [{0}, {1, 2}, set()]),
        (lambda a, b, c: (*doubled(a, b), c), [{0, 1}, {0, 1}, {2}]),  # JAX does not look into it
        (through_a_loop, [{0, 1}, {0, 1}, {2}]),
        (lambda a, b, c: (*jax.lax.fori_loop(0, 2, lambda _, ab: separate(*ab, c)[:2], (a, b)), c), [{0}, {1, 2}, {2}]),
        (lambda a, b, c: jax.lax.cond(c[0] > 0, separate, separate, a, b, c), [{0, 2}, {1, 2}, {2}]),
        (lambda a, b, c: (a, b, a), [{0}, {1}, {0}]),
    ],
    ids=[
        "plain",
        "jit",
        "nested",
        "checkpoint",
        "custom",
        "loop",
        "parts of a loop",
        "condition",
        "inputs",
    ],
)  # fmt: skip
def test_an_output_depends_on_what_it_is_computed_from(function, expected):
    rows = jnp.ones(3)
    assert dependencies(jax.make_jaxpr(function)(rows, rows, rows)) == expected
