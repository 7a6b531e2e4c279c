"""Text from a language model: the prompt, then tokens up to the end, which depend on their own key only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.recipes.tasks import sampled

END, START, VOCABULARY = 1, 2, 6


class Counting:
    """After token n, most likely comes n + 1, and after the last one the end: the state is how many steps it took."""

    def start_state(self, rows, length):
        return jnp.zeros(rows, jnp.int32)

    def step(self, tokens, position, state):
        following = jnp.where(tokens + 1 < VOCABULARY, tokens + 1, END)
        return 2.0 * jax.nn.one_hot(following, VOCABULARY), state + 1


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


def test_at_temperature_zero_the_likeliest_token_follows_until_the_end(draw):
    tokens = draw([[START, 0], [START, 4]], [0, 1], 0.0)
    assert tokens.tolist() == [[2, 0, 1, 1, 1, 1, 1, 1, 1, 1], [2, 4, 5, 1, 1, 1, 1, 1, 1, 1]]


def test_an_end_token_in_the_prompt_does_not_end_the_sample(draw):
    assert draw([[START, END, 3]], [0], 0.0).tolist() == [[2, 1, 3, 4, 5, 1, 1, 1, 1, 1]]


def test_an_end_that_is_the_start_ends_the_text_only_after_the_prompt(draw):
    assert draw([[END]], [0], 0.0).tolist() == [[1, 2, 3, 4, 5, 1, 1, 1, 1, 1]]


def test_the_lowest_temperatures_take_the_likeliest_token(draw):
    assert draw([[START]], [0], 1e-38).tolist() == draw([[START]], [0], 0.0).tolist()


def test_a_row_follows_from_its_key_whatever_else_is_in_the_batch(draw):
    seeds = list(range(40))
    tokens = draw([[START]] * 40, seeds)
    np.testing.assert_array_equal(draw([[START]] * 40, seeds[::-1])[::-1], tokens)
    np.testing.assert_array_equal(draw([[START]] * 2, seeds[7:9]), tokens[7:9])
    assert len(np.unique(tokens, axis=0)) > 20


def test_tokens_have_the_probabilities_of_the_logits_divided_by_the_temperature(draw):
    first = draw([[START]] * 2000, list(range(2000)), 0.5)[:, 1]
    likely = np.exp(2 / 0.5) / (np.exp(2 / 0.5) + VOCABULARY - 1)
    assert np.mean(first == START + 1) == pytest.approx(likely, abs=4 * np.sqrt(likely * (1 - likely) / 2000))
