"""What every language model does: no token sees another segment, step by step as at once, and samples."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from trainer.metrics.tokens import next_tokens
from trainer.models.small import LstmLanguageModel
from trainer.models.transformer import Transformer
from trainer.nnx_task import nnx_task
from trainer.recipes.tasks import sampled

VOCABULARY, WIDTH, LENGTH = 11, 8, 12
SIZES = ((5, 4), (3, 9), (12,))  # of the segments of each row; the rest is padding
MODELS = {
    "transformer": lambda rngs, **settings: Transformer(
        VOCABULARY, rngs, **{"layers": 2, "width": WIDTH, "heads": 2} | settings
    ),
    "lstm": lambda rngs, **settings: LstmLanguageModel(
        VOCABULARY, rngs, **{"layers": 2, "width": WIDTH} | settings
    ),
}
NAMES = list(MODELS)


def rows_of(sizes):
    """tokens, segment_ids and positions of rows with segments of these sizes."""
    segments, positions = np.zeros((2, len(sizes), LENGTH), np.int32)
    for row, of_row in enumerate(sizes):
        parts = [(number, place) for number, size in enumerate(of_row, 1) for place in range(size)]
        segments[row, : len(parts)], positions[row, : len(parts)] = np.transpose(parts)
    tokens = np.random.default_rng(1).integers(1, VOCABULARY, segments.shape, np.int32) * (
        segments > 0
    )
    return {"tokens": tokens, "segment_ids": segments, "positions": positions}


BATCH = rows_of(SIZES)


def filled(shapes):
    """NumPy arrays of these shapes, for which no program has to be compiled."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: (rng.standard_normal(leaf.shape) / 3).astype(leaf.dtype), shapes
    )


def model_of(name):
    model = nnx.eval_shape(lambda: MODELS[name](nnx.Rngs(0)))
    nnx.update(model, filled(nnx.state(model, nnx.Param)))
    model.eval()
    return model


@functools.cache
def losses_of(name):
    """batch -> nats [b, length] of each token that counts, 0 elsewhere."""
    return jax.jit(lambda batch: nats(model_of(name)(**batch), batch))


def nats(logits, batch):
    targets, counts = next_tokens(batch)
    return jnp.where(counts, optax.softmax_cross_entropy_with_integer_labels(logits, targets), 0)


class Given(nnx.Module):
    """Embeddings that do not depend on the tokens, to differentiate with respect to them."""

    dtype = None

    def __init__(self, embeddings):
        self.embeddings = nnx.data(embeddings)

    def __call__(self, tokens):
        return self.embeddings


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_depends_on_the_tokens_before_it_in_its_segment_and_on_no_other(name):
    """Other derivatives are exactly 0."""
    segments, (_, counts) = BATCH["segment_ids"], next_tokens(BATCH)

    # a row's losses depend on no other row, so their sum has the derivatives of each
    def losses(embeddings):
        model = model_of(name)
        model.embedding = Given(embeddings)
        return nats(model(**BATCH), BATCH).sum(0)

    embeddings = (
        np.random.default_rng(2).standard_normal((len(SIZES), LENGTH, WIDTH)).astype(np.float32)
    )
    derivatives = jax.jit(jax.jacrev(losses))(embeddings)  # [place of the loss, row, place, width]
    depends = np.any(derivatives != 0, axis=-1).swapaxes(0, 1)
    same = segments[:, :, None] == segments[:, None, :]
    np.testing.assert_array_equal(
        depends, same & np.tri(LENGTH, dtype=bool) & np.asarray(counts)[:, :, None]
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_document_has_the_same_loss_alone_and_packed(name):
    packed = losses_of(name)(BATCH)
    for row, sizes in enumerate(SIZES):
        for number, size in enumerate(sizes):
            place = slice(sum(sizes[:number]), sum(sizes[: number + 1]))
            alone = rows_of([(size,)] * len(SIZES))
            alone["tokens"][0, :size] = BATCH["tokens"][row, place]
            losses = losses_of(name)(alone)[0, :size]
            assert losses.sum() > 0
            np.testing.assert_allclose(losses, packed[row, place], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_logits_token_by_token_are_those_of_complete_rows(name):
    tokens = BATCH["tokens"]
    segments, positions = (
        np.ones_like(tokens),
        np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape),
    )

    def both():
        model = model_of(name)

        def step(state, given):
            logits, state = model.step(*given, state)
            return state, logits

        steps = jax.lax.scan(
            step, model.start_state(len(tokens), LENGTH), (tokens.T, jnp.arange(LENGTH))
        )[1]
        return jnp.swapaxes(steps, 0, 1), model(tokens, segments, positions)

    steps, complete = jax.jit(both)()
    assert steps.shape == (len(tokens), LENGTH, VOCABULARY)
    np.testing.assert_allclose(steps, complete, rtol=1e-5, atol=1e-5)


@functools.cache
def task_of(name, precision="f32", **settings):
    def loss(model, batch):
        logits = model(batch["tokens"], batch["segment_ids"], batch["positions"])
        return nats(logits, batch).sum(1), logits

    return nnx_task(
        functools.partial(MODELS[name], **settings), loss, optax.sgd(0.1), precision=precision
    )


def started(task):
    """Variables of the task, as shapes."""
    return jax.eval_shape(lambda: task.init(jax.random.key(0), None))


def gradients(name):
    task = task_of(name)

    @jax.jit
    def of(variables):
        def total(params):
            losses, _, logits = task.loss_fn(
                variables._replace(params=params), BATCH, jax.random.key(0), True
            )
            return losses.sum(), logits

        return jax.grad(total, has_aux=True)(variables.params)

    return of(filled(started(task)))


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_reaches_every_parameter(name):
    grads, logits = gradients(name)
    assert (logits.shape, logits.dtype) == ((*BATCH["tokens"].shape, VOCABULARY), jnp.float32)
    assert [path for path, grad in grads.items() if not np.any(grad)] == []


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_random_in_training_only(name):
    task = task_of(name, dropout=0.5)

    def losses(variables, seed, train):
        return task.loss_fn(variables, BATCH, jax.random.key(seed), train)[0]

    run, variables = jax.jit(losses, static_argnums=2), filled(started(task))
    assert np.all(run(variables, 0, True) != run(variables, 1, True))
    np.testing.assert_allclose(run(variables, 0, False), losses_of(name)(BATCH).sum(1), rtol=1e-5)


def jaxpr_of(name, precision="f32", **settings):
    task = task_of(name, precision, **settings)
    traced = jax.make_jaxpr(
        lambda *given: task.loss_fn(*given, jax.random.key(1), True), return_shape=True
    )
    return *traced(started(task), BATCH), started(task)


@pytest.mark.parametrize(
    ("name", "in_float32"), [("transformer", ["logits", "scores"]), ("lstm", ["logits"])]
)
def test_bfloat16_is_used_for_products_but_not_for_parameters_logits_and_scores(name, in_float32):
    jaxpr, (losses, _, logits), variables = jaxpr_of(name, "bf16")
    assert {leaf.dtype.name for leaf in variables.params.values()} == {"float32"}
    assert (losses.dtype, logits.dtype) == (jnp.float32, jnp.float32)
    kinds = re.findall(r":(\w+)\[[^]]*\] = dot_general\[", str(jaxpr))
    assert kinds.count("f32") == len(in_float32), kinds
    assert kinds.count("bf16") == len(kinds) - len(in_float32) >= 4, kinds


@pytest.mark.parametrize("name", NAMES)
def test_steps_in_bfloat16_have_logits_in_float32_and_a_state_that_keeps_its_dtypes(name):
    def predict(model, batch):
        state = model.start_state(2, LENGTH)
        logits, after = model.step(batch["tokens"], jnp.int32(3), state)
        assert jax.tree.map(jnp.dtype, after) == jax.tree.map(jnp.dtype, state)
        return {"logits": logits}

    task = nnx_task(
        MODELS[name], lambda model, batch: None, optax.sgd(0.1), predict=predict, precision="bf16"
    )
    tokens = {"tokens": jax.ShapeDtypeStruct((2,), jnp.int32)}
    assert jax.eval_shape(task.predict_fn, started(task), tokens)["logits"].dtype == jnp.float32


def test_the_forget_gates_of_an_lstm_begin_open():
    cell = MODELS["lstm"](nnx.Rngs(0)).layers[0]
    (_, forget, _, _) = jnp.split(cell.dense_h.bias[...], 4)
    assert (forget.tolist(), cell.dense_h.bias[...].sum()) == ([1] * WIDTH, WIDTH)


def test_more_layers_do_not_enlarge_the_program():
    few, many = (
        str(jaxpr_of("transformer", layers=layers)[0]).count("dot_general") for layers in (2, 6)
    )
    assert few == many > 0


REMATS = ("none", "attention", "dots", "full")


def gradient_of(remat, precision="f32"):
    """params -> their gradient, and what its backward pass keeps, as shapes."""
    task = task_of("transformer", precision, remat=remat)
    variables = filled(started(task))

    def total(params):
        return task.loss_fn(variables._replace(params=params), BATCH, jax.random.key(0), True)[
            0
        ].sum()

    kept = jax.tree.leaves(
        jax.eval_shape(lambda params: jax.vjp(total, params)[1], variables.params)
    )
    return jax.grad(total), variables.params, kept


@pytest.mark.slow
@pytest.mark.parametrize("remat", REMATS[1:])
def test_what_is_computed_again_is_not_kept_and_gradients_are_the_same(remat):
    grad, params, kept = gradient_of(remat)
    plain, _, all_kept = gradient_of("none")
    for name, leaf in jax.jit(plain)(params).items():
        np.testing.assert_allclose(jax.jit(grad)(params)[name], leaf, rtol=1e-4, atol=1e-6)
    squares = [
        [leaf for leaf in leaves if leaf.shape[-2:] == (LENGTH, LENGTH)]
        for leaves in (kept, all_kept)
    ]
    assert not squares[0]
    assert squares[1]
    assert sum(leaf.size for leaf in kept) < sum(leaf.size for leaf in all_kept)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("remat", REMATS)
def test_every_rematerialization_lowers_for_accelerators(remat, platform):
    grad, params, _ = gradient_of(remat, "bf16")
    assert jax.export.export(jax.jit(grad), platforms=[platform])(params).platforms == (platform,)


def test_in_bfloat16_what_layers_add_to_is_in_bfloat16_too():
    jaxpr, *_ = jaxpr_of("transformer", "bf16")
    (carried,) = [
        equation.outvars[0].aval for equation in jaxpr.eqns if equation.primitive.name == "scan"
    ]
    assert (carried.shape, carried.dtype) == ((len(SIZES), LENGTH, WIDTH), jnp.bfloat16)


END, START, TOKENS = 1, 2, 6


class Counting:
    """After token n, most likely comes n + 1, and after the last one the end: the state is how many steps it took."""

    def start_state(self, rows, length):
        return jnp.zeros(rows, jnp.int32)

    def step(self, tokens, position, state):
        following = jnp.where(tokens + 1 < TOKENS, tokens + 1, END)
        return 2.0 * jax.nn.one_hot(following, TOKENS), state + 1


@pytest.fixture(scope="module")
def draw():
    """draw(prompts, seeds, temperature=...): the tokens of up to 10 places."""

    def drawn(prompts, seeds, temperature):
        keys = jax.vmap(jax.random.key)(seeds)
        return sampled(Counting(), prompts, keys, length=10, temperature=temperature, end=END)

    compiled = jax.jit(drawn, static_argnums=2)
    return lambda prompts, seeds, temperature=1.0: np.asarray(
        compiled(jnp.array(prompts), jnp.array(seeds), temperature)
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-38])
@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ([START, 0], [2, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
        ([START, 4], [2, 4, 5, 1, 1, 1, 1, 1, 1, 1]),
        ([START, END, 3], [2, 1, 3, 4, 5, 1, 1, 1, 1, 1]),  # no end of the sample
        ([END], [1, 2, 3, 4, 5, 1, 1, 1, 1, 1]),  # a start: it ends the text only after the prompt
    ],
)
def test_without_chance_the_likeliest_token_follows_until_the_end(
    draw, prompt, tokens, temperature
):
    assert draw([prompt], [0], temperature).tolist() == [tokens]


def test_a_row_follows_from_its_key_whatever_else_is_in_the_batch(draw):
    seeds = list(range(40))
    tokens = draw([[START]] * 40, seeds)
    np.testing.assert_array_equal(draw([[START]] * 40, seeds[::-1])[::-1], tokens)
    np.testing.assert_array_equal(draw([[START]] * 2, seeds[7:9]), tokens[7:9])
    assert len(np.unique(tokens, axis=0)) > 20


def test_tokens_have_the_probabilities_of_the_logits_divided_by_the_temperature(draw):
    first = draw([[START]] * 2000, list(range(2000)), 0.5)[:, 1]
    likely = np.exp(2 / 0.5) / (np.exp(2 / 0.5) + TOKENS - 1)
    assert np.mean(first == START + 1) == pytest.approx(
        likely, abs=4 * np.sqrt(likely * (1 - likely) / 2000)
    )
