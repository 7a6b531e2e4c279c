"""The recipes byte_lm and char_lm on texts of the converter: every mode, with narrow models."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from stages import without_beam
from tokenizers import Tokenizer, models

from converters import text_to_gcs
from pipeline.errors import EvaluationError, OptionError
from pipeline.shards.manifest import update_manifest
from pipeline.shards.typed_json import sealed
from pipeline.storage.schemes import open_storage
from pipeline.tokenizers import CharacterTokenizer, TextInfo, open_hugging_face
from trainer.commands.running import run
from trainer.config import TrainerConfig
from trainer.recipes.language_models import ByteLm, CharLm
from trainer.recipes.small_images import Digits

WORDS = ["a", "shard", "of", "records", "reads", "the", "größte", "batch", "once"]
LENGTH = 32


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """texts(tokenizer): the output directory. A directory of 60 documents of up to 100 bytes."""
    directory = tmp_path_factory.mktemp("texts")
    (directory / "raw").mkdir()
    rng = np.random.default_rng(4)
    for number in range(60):
        words = rng.choice(WORDS, rng.integers(1, 18))
        (directory / "raw" / f"{number}.txt").write_text(" ".join(words))

    def converted(tokenizer):
        output = directory / tokenizer
        flags = f"--raw-data-dir={directory}/raw --output={output} --sequence-length={LENGTH}"
        flags += f" --validation-fraction=0.3 --tokenizer={tokenizer}"
        if not output.exists():
            with without_beam():
                text_to_gcs.main(flags.split())
        return str(output)

    return converted


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    """A narrow byte_lm that was trained for three steps, and evaluated."""
    sizes = {"global_batch_size": 8, "eval_batch_size": 12, "max_steps": 3}
    settings = TrainerConfig(workdir=str(tmp_path_factory.mktemp("byte_lm")), **sizes)
    config = ByteLm(data_dir=texts("bytes"), layers=1, width=8, heads=2, trainer=settings)
    config.check()
    run(config)
    return config


def result_of(config):
    return json.loads((Path(config.trainer.workdir) / "eval_result.json").read_text())


def test_an_evaluation_counts_the_bytes_and_tokens_of_the_manifest(trained):
    result = result_of(trained)
    manifest = json.loads(Path(trained.data_dir, "manifest.json").read_text())
    totals = manifest["splits"]["validation"]["totals"]
    assert result["proven"]
    assert {name: result[name] for name in ("num_bytes", "num_tokens")}.items() <= totals.items()
    nats = math.log(result["perplexity"]) * result["num_tokens"]
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / result["num_bytes"])


def test_predictions_of_rows_add_up_to_the_evaluation(trained):
    run(replace(trained, mode="predict"))
    lines = Path(trained.trainer.workdir, "predictions.jsonl").read_text().splitlines()
    rows, result = [*map(json.loads, lines)], result_of(trained)
    assert len(rows) == result["records"]
    for name in ("num_bytes", "num_tokens"):
        assert sum(row[name] for row in rows) == result[name]
    nats = sum(row["nats"] for row in rows)
    assert result["loss"] == pytest.approx(nats / len(rows) / (LENGTH - 1), rel=1e-5)
    for each, of_it in ((result, nats), (rows[0], rows[0]["nats"])):
        bits = of_it / math.log(2) / each["num_bytes"]
        assert each["bits_per_byte"] == pytest.approx(bits, rel=1e-5)


def test_an_evaluation_raises_if_the_bytes_are_not_those_of_the_manifest(trained, monkeypatch):
    def other(manifest):
        split = manifest.splits["validation"]
        totals = {**split.totals, "num_bytes": split.totals["num_bytes"] + 1}
        splits = {**manifest.splits, "validation": replace(split, totals=totals)}
        return replace(manifest, splits=splits)

    before = Path(trained.data_dir, "manifest.json").read_bytes()
    try:
        update_manifest(open_storage(trained.data_dir), trained.data_dir, other)
        added = "'bits_per_byte' added up num_bytes=.*; the dataset states"
        with pytest.raises(EvaluationError, match=added):
            run(replace(trained, mode="evaluate"))
    finally:
        Path(trained.data_dir, "manifest.json").write_bytes(before)


def printed(config, capsys, **fields):
    capsys.readouterr()
    config = replace(config, mode="sample", **fields)
    config.check()
    run(config)
    return capsys.readouterr().out


def test_samples_begin_with_the_prompt_and_follow_from_the_seed(trained, capsys):
    shown = printed(trained, capsys, prompt="größ", num_samples=3)
    texts = shown.removesuffix("\n").split("\n---\n")
    assert [text.startswith("größ") for text in texts] == [True] * 3
    assert len(set(texts)) == 3
    assert printed(trained, capsys, prompt="größ", num_samples=3) == shown
    greedy = printed(trained, capsys, prompt="größ", num_samples=2, temperature=0.0, num_tokens=5)
    assert len(set(greedy.removesuffix("\n").split("\n---\n"))) == 1


def test_prompts_that_do_not_fit_are_refused(trained):
    sampling = replace(trained, mode="sample")
    for fields, text in (
        ({"prompt": "x" * 31}, "the prompt has 31 tokens"),
        ({"trainer": replace(trained.trainer, fast_dev_run=1)}, "fast_dev_run with mode=sample"),
        ({"num_tokens": 32}, "num_tokens=32"),
    ):
        with pytest.raises(OptionError, match=text):
            replace(sampling, **fields).check()
    characters = replace(sampling, prompt="größte")
    vars(characters)["text_info"] = TextInfo(CharacterTokenizer(), 32, "documents")
    with pytest.raises(OptionError, match=r"has characters \('ß', 'ö'\)"):
        characters.check()


def test_a_sample_is_the_text_between_the_start_and_the_first_end_after_the_prompt(
    trained, tmp_path
):
    # ordinary words of the vocabulary, which decoding keeps
    words = {"[S]": 0, "[E]": 1, "?": 2, "a": 3, "b": 4}
    Tokenizer(models.WordLevel(words, "?")).save(str(tmp_path / "words.json"))
    config = replace(trained, mode="sample", prompt="a", num_samples=3)
    tokenizer = open_hugging_face(str(tmp_path / "words.json"), "[S]", "[E]")
    config.__dict__["text_info"] = TextInfo(tokenizer, 8, "concat")
    batches = []

    class Sampling:
        def __init__(self, task, config):
            self.config = config

        def predict(self, input_fn, **_):
            batches.append(self.config.eval_batch_size)
            rows = ([0, 3, 4, 1, 1], [0, 3, 4, 4, 4], [0, 3, 1, 1, 1])
            return [{"tokens": np.array(tokens)} for tokens in rows]

    assert list(config.samples(Sampling(None, config.trainer))) == ["a b", "a b b b", "a"]
    devices = jax.device_count()
    # no more rows than samples, but as many on each device
    assert batches == [-(-3 // devices) * devices]


def test_unknown_tokens_are_a_warning(trained, texts, caplog):
    settings = replace(trained.trainer, workdir="unused")
    CharLm(data_dir=texts("characters"), trainer=settings).check()
    text = "tokens are unknown to the tokenizer, but all of their bytes count: bits_per_byte is too low"
    assert text in caplog.text


def test_a_recipe_without_samples_and_data_without_its_text_are_refused(trained, tmp_path):
    refused = "mode=sample: this recipe generates nothing. The recipes char_lm and byte"
    with pytest.raises(OptionError, match=refused):
        Digits(tiny=True, mode="sample", trainer=trained.trainer).check()
    data = shutil.copytree(trained.data_dir, tmp_path / "data")
    settings = replace(trained.trainer, workdir=str(tmp_path / "new"))
    other = replace(trained, data_dir=str(data), trainer=settings)
    text = json.loads((data / "text.json").read_text()) | {"sequence_length": LENGTH + 1}
    del text["checksum"]
    (data / "text.json").write_text(json.dumps(sealed(text)))
    refused = rf"no feature 'tokens' of the shape \[{LENGTH + 1}\], which this recipe"
    with pytest.raises(OptionError, match=refused):
        other.check()
    (data / "text.json").unlink()
    with pytest.raises(OptionError, match="has no packed text. Give the output directory of"):
        replace(other).check()
