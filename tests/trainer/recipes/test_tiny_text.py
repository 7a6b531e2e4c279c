"""The generated text of --tiny: rows as converters.text_to_gcs packs them."""

import numpy as np
import pytest

from pipeline.sources.open_dataset import open_dataset
from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer, TextInfo
from trainer.metrics.tokens import next_tokens
from trainer.recipes.tasks import tiny_text


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharacterTokenizer()], ids=repr)
def test_rows_have_complete_documents_and_the_totals_that_they_state(tokenizer):
    records = open_dataset(tiny_text("train", TextInfo(tokenizer, 64, "documents")))
    rows = {key: np.array([example[key] for example in records.examples()]) for key in ("tokens", "segment_ids")}
    sizes = np.array([example["num_bytes"] for example in records.examples()])
    positions = np.array([example["positions"] for example in records.examples()])
    counts = np.asarray(next_tokens(rows)[1])
    assert (len(sizes), rows["tokens"].shape) == (130, (130, 64))
    assert records.info.totals == {"num_bytes": sizes.sum(), "num_tokens": counts.sum()}
    for row in range(130):
        for segment in range(1, rows["segment_ids"][row].max() + 1):
            place = rows["segment_ids"][row] == segment
            first, *text, last = rows["tokens"][row, place].tolist()
            assert (first, last) == (tokenizer.start, tokenizer.end)
            assert tokenizer.decode(text).endswith(".")
            assert positions[row, place].tolist() == list(range(place.sum()))
    decoded = [len(tokenizer.decode(tokens).encode()) for tokens in rows["tokens"]]
    np.testing.assert_array_equal(decoded, sizes)


def test_the_same_tiny_text_split_is_reproducible_and_others_differ():
    info = TextInfo(ByteTokenizer(), 64, "documents")
    train, same, test = (tiny_text(split, info).info.fingerprint for split in ("train", "train", "test"))
    assert train == same != test
