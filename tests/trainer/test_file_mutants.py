"""Mutants of the files that infeed reads back: the same values, or one error."""

import itertools
import json
import re
import shutil

import pytest
from file_mutants import mutants
from raw_data.texts import RawTexts
from stages import without_beam
from sweep import SWEEP
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.errors import InfeedError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.typed_json import sealed
from pipeline.storage.schemes import open_storage
from pipeline.tokenizers import read_text_info
from trainer.checkpointing.contents import check_tree, read_contents
from trainer.checkpointing.keeping import Evaluations
from trainer.loop.evaluation_end import measured
from trainer.reports.segments import BadRecords, End, Invocation, Start, append, read_history

MUTANTS = 500 if SWEEP else 25
ORDER = {"num_records": 9, "batch": 2, "block_starts": [[0, 1, 9]], "seed": 1, "streams": 1}
SOURCES = [{"name": "d", "fingerprint": "f", "first": 0, "stop": 9}]
INPUT = {"fingerprint": "data", "order": ORDER, "sources": SOURCES}
COMMAND = Invocation("digits", ["--seed", "1"], "/home")
TIME, POSITION = "2026-11-23T12:00:00+00:00", {"epoch": 0, "records": 0}
START = Start(0, TIME, POSITION, INPUT, {"seed": 1}, COMMAND, {}, "1 x cpu")


def encoded(directory):
    info = read_text_info(str(directory))
    tokens = info.tokenizer.encode_batch(["Zeile 1"])[0]
    return info.sequence_length, info.packing, tokens.tolist(), info.tokenizer.decode(tokens)


def arrays(directory):
    return check_tree(open_storage(str(directory)), str(directory), ["a/w"])


READERS = {
    "segments.jsonl": lambda directory: read_history(str(directory)),
    "evaluations.json": lambda directory: Evaluations(str(directory)).read(),
    "manifest.json": lambda directory: read_manifest(str(directory)),
    "text.json": encoded,
    "tokenizer.json": encoded,
    "7/assets.extra/infeed.json": lambda directory: measured(str(directory), "loss"),
    "20/contents/metadata": lambda directory: read_contents(
        open_storage(str(directory)), str(directory), 20
    ),
    "_METADATA": arrays,
}
SEAL = b'"checksum"'
NOT_SEALED = ("7/assets.extra/infeed.json",)  # another number in it is another number


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for line in (START, BadRecords("data", {"7": "truncated"}), End(12, START.time, "finished")):
        append(str(directory), line)
    Evaluations(str(directory)).add(10, {"loss": 0.5, "accuracy": 0.9}, [])
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    made.train_from_iterator(
        ["Zeile 1"], trainers.BpeTrainer(special_tokens=["<|endoftext|>"], show_progress=False)
    )
    made.save(str(directory / "own.json"))
    with without_beam():
        flags = ("--max-bad-records=9", "--sequence-length=64", "--validation-fraction=0.2")
        raw = RawTexts(directory / "raw").write()
        raw.convert(directory / "texts", *flags, f"--tokenizer={directory}/own.json")
    for name in ("manifest.json", "text.json", "tokenizer.json"):
        shutil.copy(directory / "texts" / name, directory)
    for name in ("7/assets.extra", "20/contents"):
        (directory / name).mkdir(parents=True)
    (directory / "7/saved_model.pb").touch()
    (directory / "7/assets.extra/infeed.json").write_text(
        json.dumps({"origin": {"step": 7, "metrics": {"loss": 0.5}}})
    )
    contents = sealed(
        {"step": 20, "versions": {"jax": "1"}, "config": {"seed": 1}, "arrays": {"a/w": {"sum": 1}}}
    )
    (directory / "20/contents/metadata").write_text(json.dumps(contents))
    keys = [{"key": key, "key_type": 2} for key in ("a", "w")]
    leaf = {"key_metadata": keys, "value_metadata": {}}
    (directory / "_METADATA").write_text(json.dumps({"tree_metadata": {"('a', 'w')": leaf}}))
    return directory


def outcome(read, directory):
    """What it returns, or the text of its error."""
    try:
        return read(directory)
    except InfeedError as error:
        return str(error)


@pytest.mark.parametrize("name", READERS)
def test_a_mutant_of_a_file_changes_nothing_or_is_one_error(files, name):
    path, read = files / name, READERS[name]
    whole, before = path.read_bytes(), read(files)
    try:
        for how, changed in itertools.islice(mutants(whole, seed=42), MUTANTS):
            path.write_bytes(changed)
            after = outcome(read, files)
            if isinstance(after, str):
                assert re.fullmatch(rf".*{name.rpartition('/')[2]}.*", after), how
            elif changed.count(SEAL) >= whole.count(SEAL):  # without one, a file is believed
                assert after == before or (name in NOT_SEALED and isinstance(after, float)), how
    finally:
        path.write_bytes(whole)
