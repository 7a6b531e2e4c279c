"""What an export contains, that it predicts what the trainer predicts, and what is not published."""

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.datasets import eval_dataset
from pipeline.errors import CheckpointError, ExportError, OptionError, StorageError
from pipeline.ops import DecodeCentralCrop, DecodeStored, Rename
from pipeline.shards.schema import Labels
from pipeline.spec import ArraySpec
from pipeline.tensorflow_op import TensorFlowOp
from pipeline.tf_cpu import tf
from trainer.loop import export as exporting
from trainer.recipes.tiny import tiny_images
from trainer.serving import graph_decoding, served_function, verification
from trainer.serving.publishing import ExportOptions
from trainer.serving.verification import BATCH_SIZES, answer, served
from trainer.trainer import Trainer

VOCABULARY = b"a\nb\xff\n" * 10_000


@pytest.fixture(scope="module")
def export_and_answers(photographs, tmp_path_factory):
    """An export that another process has verified; and what that process answered for all records, as `served` does."""
    answers = {}

    def of_all(saved_model, scratch, requests, check):
        given = requests["serving_default"]["examples"]
        more = {"serving_default": {"examples": [*given, *payloads(photographs)]}}
        with pytest.MonkeyPatch.context() as patch:
            # TensorFlow's XLA would end the process
            patch.setenv("XLA_FLAGS", "--xla_flag_of_another_version=1")
            found = served(saved_model, scratch, {**requests, **more}, check)
        for key, each in found.items():
            answers[key] = {name: rows[len(given) :] for name, rows in each.items()}
            found[key] = {name: rows[: len(given)] for name, rows in each.items()}
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "served", of_all)
        directory = str(tmp_path_factory.mktemp("exports"))
        vocabulary = tmp_path_factory.mktemp("assets") / "words"
        vocabulary.write_bytes(VOCABULARY)
        options = {
            "labels": photographs.labels,
            "assets_extra": {"vocab.txt": vocabulary, "copy": str(vocabulary)},
        }
        done = photographs.trainer.export(directory, photographs.input, **options)
    return done, answers


@pytest.fixture
def exported(export_and_answers):
    return export_and_answers[0]


def described(done):
    return json.loads(Path(done.path, "assets.extra/infeed.json").read_text())


def payloads(photographs):
    everything = eval_dataset(
        photographs.records, ops=photographs.ops, keys=["image"], global_batch=130
    )
    return everything.serving(["image"]).payloads(range(130))


def test_an_export_without_jax_predicts_the_classes_counted_by_the_evaluation(
    photographs, export_and_answers
):
    labels = np.arange(130) % 4
    evaluated = photographs.trainer.evaluate(photographs.input).metrics["accuracy"]
    assert 0.5 < evaluated < 1
    for rows in BATCH_SIZES:
        answers = export_and_answers[1]["serving_default", rows]
        assert (answers["class"] == labels).sum() == round(evaluated * 130)
        assert {*answers["class"].tolist()} == {0, 1, 2, 3}
        assert answers["class_name"].tolist() == [
            b"class %d" % number for number in answers["class"]
        ]


def test_signatures_are_for_examples_features_and_arrays_without_what_only_repeats_the_record(
    photographs, exported
):
    signatures = described(exported)["signatures"]
    inputs = {name: facts["inputs"] for name, facts in signatures.items()}
    assert inputs == {
        "serving_default": {"examples": {"name": "examples", "shape": [], "dtype": "string"}},
        "features": {"image_encoded": {"name": "image/encoded", "shape": [], "dtype": "string"}},
        "arrays": {"image": {"name": "image", "shape": [8, 8, 3], "dtype": "uint8"}},
    }
    for facts in signatures.values():
        assert facts["predictions"] == {
            "class": {"shape": [], "dtype": "int32"},
            "class_name": {"shape": [], "dtype": "string"},
            "logits": {"shape": [4], "dtype": "float32"},
        }


def test_an_export_describes_its_step_model_data_and_labels(photographs, exported):
    found = described(exported)
    assert found["origin"]["step"] == exported.step == 3
    assert found["origin"]["model"] == "ema"
    assert found["origin"]["fingerprint"] == photographs.records.info.fingerprint
    assert found["labels"]["class"]["names"] == ["class 0", "class 1", "class 2", "class 3"]
    assert found["verified"]["tolerance"] == {
        "serving_default": 0.02,
        "features": 0.02,
        "arrays": 1e-5,
    }
    differences = found["verified"]["difference"]
    assert max(differences.values()) == exported.difference < 0.002
    assert differences["arrays"] <= 1e-5
    assert Path(exported.path).name.isdecimal()


def test_an_export_contains_the_asset_files_of_the_user(exported):
    extra = Path(exported.path, "assets.extra")
    assert sorted(path.name for path in extra.iterdir()) == ["copy", "infeed.json", "vocab.txt"]
    assert (extra / "vocab.txt").read_bytes() == (extra / "copy").read_bytes() == VOCABULARY
    assert json.loads((extra / "infeed.json").read_text())["assets_extra"] == ["vocab.txt", "copy"]


@pytest.mark.usefixtures("in_this_process")
def test_an_export_names_no_local_directory_except_its_work_directory(exported):
    places = {
        Path(__file__).parents[3],
        Path(jax.__file__).parents[1],
        Path(sys.prefix),
        Path.home(),
        Path.cwd(),
    }
    places |= {Path(tempfile.gettempdir()), Path(exported.path).parent}
    named = {
        (path.name, str(place))
        for path in Path(exported.path).rglob("*")
        for place in places
        if path.is_file() and f"{place}/".encode() in path.read_bytes()
    }
    assert {name for name, _ in named} == {"infeed.json"}, named
    description = json.loads(Path(exported.path, "assets.extra/infeed.json").read_text())
    del description["origin"]["workdir"]
    assert not [place for place in places if f"{place}/" in json.dumps(description)]


@pytest.mark.slow
def test_the_parameters_themselves_can_be_exported_rather_than_their_average(
    photographs, exported, tmp_path
):
    plain = photographs.trainer.export(
        str(tmp_path), photographs.input, model="params", keys=["logits"]
    )
    requests = {"serving_default": {"examples": payloads(photographs)[:8]}}
    logits = [
        answer(path, requests, (8,))["serving_default", 8]["logits"]
        for path in (plain.path, exported.path)
    ]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3


@dataclass(frozen=True)
class Brighter:
    """An op of a user's."""

    by: int = 9

    @property
    def reads(self):
        return ("image",)

    def output_spec(self, specs):
        return {"image": ArraySpec((8, 8, 3), specs["image"].dtype)}

    def __call__(self, features, rng):
        return {"image": features["image"] // 2 + np.uint8(self.by)}


class ExportedBrighter(Brighter):
    def tensorflow(self, features):
        return {"image": features["image"] // 2 + tf.constant(9, tf.uint8)}


def wrong_op(photographs, monkeypatch):
    return lambda ctx: photographs.input(ctx, ExportedBrighter(by=40))


def wrong_resizing(photographs, monkeypatch):
    resized = graph_decoding._resized
    monkeypatch.setattr(
        graph_decoding,
        "_resized",
        lambda op, *given: resized(replace(op, method="bicubic"), *given),
    )
    return photographs.input


def wrong_weight(photographs, monkeypatch):
    gathered = exporting._gathered

    def changed(variables):
        for name, value in gathered(variables):
            yield name, value * (1 + 1e-3 * (name == "params/second/kernel"))

    monkeypatch.setattr(exporting, "_gathered", changed)
    return photographs.input


def wrong_order_of_labels(photographs, monkeypatch):
    named = served_function._named
    backwards = replace(
        photographs.records.info.labels, names=photographs.records.info.labels.names[::-1]
    )
    monkeypatch.setattr(
        served_function, "_named", lambda numbers, labels: named(numbers, backwards)
    )
    return photographs.input


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("broken", "text"),
    [
        pytest.param(wrong_op, r"'logits' of record \d+, .*they differ by", marks=pytest.mark.slow),
        pytest.param(wrong_resizing, r"'logits' of record \d+, through the signature 'serving_default' in batches of 1", marks=pytest.mark.slow),
        (wrong_weight, r"they differ by 0.00\d+ of the largest value \(tolerance 1e-05\). Nothing was published"),
        (wrong_order_of_labels, "'class_name' of record 0, .*where they have to be equal"),
    ],
)  # fmt: skip
def test_an_export_that_predicts_something_else_is_not_published(
    photographs, tmp_path, monkeypatch, broken, text
):
    input_fn = broken(photographs, monkeypatch)
    with pytest.raises(ExportError, match=text):
        photographs.trainer.export(str(tmp_path / "exports"), input_fn, labels=photographs.labels)
    assert list((tmp_path / "exports").iterdir()) == []


NO_NAMES = (
    "infeed.json",
    "Infeed.JSON",
    "",
    "..",
    "x" * 256,
    "../vocab.txt",
    "/vocab.txt",
    "a/vocab.txt",
    "a\nb",
    7,
)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"step": 7}, CheckpointError, "no checkpoint of step 7"),
        ({"step": "best"}, CheckpointError, "has no best checkpoint"),
        ({"keys": ["logit"]}, OptionError, "does not predict 'logit'"),
        ({"keep": 0}, OptionError, "keep=0"),
        ({"tolerance": -1}, OptionError, "tolerance=-1"),
        *(
            ({"assets_extra": {name: __file__}}, OptionError, "assets_extra has")
            for name in NO_NAMES
        ),
        ({"assets_extra": {"vocab.txt": "missing.txt"}}, StorageError, r"cannot find missing\.txt"),
        ({"assets_extra": {"vocab.txt": "/"}}, StorageError, "/ is a directory"),
        ({"platforms": ["gpu"]}, OptionError, "platforms="),
        ({"labels": {"logits": Labels("logits", 0, ("a",))}}, OptionError, "labels has 'logits'"),
    ],
)
def test_a_mistake_is_one_error_before_anything_is_written(
    photographs, tmp_path, options, error, text
):
    with pytest.raises(error, match=text):
        photographs.trainer.export(str(tmp_path / "exports"), photographs.input, **options)
    assert not (tmp_path / "exports").exists()


@dataclass(frozen=True)
class GraphBrighter:
    """Written for a graph, with a seed."""

    reads = ("image",)
    output_spec = Brighter.output_spec

    def __call__(self, features, seed):
        return ExportedBrighter.tensorflow(self, features)


class OfLabel(Brighter):
    """Without a graph: the model does not depend on it."""

    reads = ("image/class/label",)

    def output_spec(self, specs):
        return {"image/class/label": specs["image/class/label"]}

    def __call__(self, features, rng):
        return features


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "op", [ExportedBrighter(), TensorFlowOp(GraphBrighter()), OfLabel()], ids=repr
)
def test_an_op_with_a_method_tensorflow_or_without_an_effect_is_exported(photographs, tmp_path, op):
    renames = Rename({"image": "picture"}), Rename({"picture": "image"})
    done = photographs.trainer.export(
        str(tmp_path), lambda ctx: photographs.input(ctx, *renames, op)
    )
    assert list(described(done)["signatures"]) == ["serving_default", "features", "arrays"]
    assert described(done)["verified"]["difference"]["features"] < 0.002


@dataclass(frozen=True)
class Cropped(DecodeCentralCrop):
    """A subclass may compute anything."""


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "op",
    [
        Cropped("image/encoded", size=(8, 8), resize_short=10),
        DecodeStored("image/encoded", shape=(8, 8, 3)),
    ],
    ids=repr,
)
def test_an_export_with_an_op_that_has_no_graph_takes_arrays_and_says_which_op(
    photographs, tmp_path, caplog, op
):
    ops = (op,)
    pngs = tiny_images("validation", (8, 8, 3), 4, encoding="png")
    records = photographs.records if isinstance(op, Cropped) else pngs
    done = photographs.trainer.export(
        str(tmp_path),
        lambda ctx: replace(photographs, records=records, ops=ops).input(ctx, Brighter()),
    )
    assert list(described(done)["signatures"]) == ["arrays"]
    assert described(done)["verified"]["tolerance"] == {"arrays": 1e-5}
    assert f"export: {ops[0]!r}, Brighter(by=9) have no method tensorflow(features)" in caplog.text


def test_stored_features_have_the_dtypes_of_the_signature_for_them(photographs):
    source = eval_dataset(photographs.records, keys=["image/class/label"], global_batch=32)
    serving = source.serving(["image/class/label"])
    (label,) = serving.stored_features(serving.payloads(range(3))).values()
    assert serving.stored
    assert label.dtype == serving.stored["image/class/label"].dtype


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_foreign_input_has_only_the_arrays_signature_and_a_fixed_batch_size_is_refused(
    dense_task, vector_input, config, tmp_path
):
    def sums(variables, batch):
        return {"sums": batch["x"] @ variables.params["a"]}

    def rigid(variables, batch):
        return {"sums": batch["x"].reshape(len(batch["x"]), -1) @ variables.params["a"]}

    free, fixed = (
        Trainer(replace(dense_task, predict_fn=each), config("model")) for each in (sums, rigid)
    )
    free.train(vector_input, max_steps=1)
    done = free.export(str(tmp_path / "exports"), vector_input)
    assert list(described(done)["signatures"]) == ["arrays"]
    text = "cannot be converted for any number of rows: .*not from len"
    with pytest.raises(ExportError, match=text):
        fixed.export(str(tmp_path / "exports"), vector_input)


def test_the_names_of_inputs_are_different_ones_that_python_and_tensorflow_accept():
    names = {"image/encoded": "image_encoded", "2m temperature": "arg_2m_temperature"}
    names |= {"_x": "arg__x", "class": "class_", "a b": "a_b", "a-b": "a_b_"}
    specs = dict.fromkeys(names, ArraySpec((), np.dtype(np.float32)))
    made = served_function._signature(specs, dict, {name: name for name in names}, 0)
    assert {name: spec.name for name, spec in made.inputs.items()} == names
    assert made.records == {argument: name for name, argument in names.items()}


def test_a_jax_without_jax2tf_is_one_error(photographs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax.experimental.jax2tf", None)
    monkeypatch.delattr(jax.experimental, "jax2tf", raising=False)
    with pytest.raises(
        ExportError, match=r"JAX .* has no jax.experimental.jax2tf, which exports need"
    ):
        photographs.trainer.export(str(tmp_path), photographs.input)
    assert list(tmp_path.iterdir()) == []


def test_a_split_that_begins_with_bad_records_only_is_one_error(tmp_path):
    options = ExportOptions(str(tmp_path))
    batch = {"_mask": np.zeros(21, np.float32)}
    rest: Any = (None, None, {}, {}, iter(()), [{}], batch, lambda: None)
    with pytest.raises(ExportError, match="begins without a good record to verify the export with"):
        exporting.make_export(options, *rest)
    assert list(tmp_path.iterdir()) == []
