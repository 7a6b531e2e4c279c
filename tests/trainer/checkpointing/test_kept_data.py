"""The description that a run keeps of its data, without any recipe: written, sealed, and used by every later call."""

import json
import shutil
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from damage import bind_to_description

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.description import Description
from pipeline.errors import CheckpointError, ExportError, InputError, OptionError
from pipeline.hosts import Hosts
from pipeline.shards.schema import ColumnStatistics, Feature, Labels, Schema
from pipeline.shards.typed_json import sealed
from pipeline.sources.in_memory import ExampleRecords
from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer, TextInfo
from trainer.checkpointing.kept_data import (
    as_begun,
    checksum,
    has_new_head,
    keep,
    kept,
    kept_before,
)
from trainer.checkpointing.warm_start import WarmStart
from trainer.commands.recorded import load
from trainer.config import TrainerConfig
from trainer.task import Target, Task, Variables
from trainer.trainer import Trainer

SCHEMA = Schema(
    "pets",
    {"kind": Feature("int64"), "colors": Feature("int64", (2,)), "weight": Feature("float32")},
)
KINDS, COLORS = ("cat", "dog", "owl"), ("black", "red", "white")
RNG = np.random.default_rng(2)
ROWS = [
    (KINDS[RNG.integers(3)], [COLORS[RNG.integers(3)] for _ in "ab"], RNG.normal())
    for _ in range(40)
]


def pets(kinds=KINDS, colors=COLORS, base=1, rows=ROWS, named=True):
    """These rows in the numbers of these names. named: whether the data state those of "kind"."""
    columns = {"colors": ColumnStatistics(80, 0, categories=dict.fromkeys(colors, 1))}
    labels = Labels("kind", base, kinds) if named else None
    examples = [
        {"kind": kinds.index(kind) + base, "colors": [*map(colors.index, pair)], "weight": weight}
        for kind, pair, weight in rows
        if kind in kinds
    ]
    return ExampleRecords(
        "pets", SCHEMA, examples, labels, description=Description(SCHEMA, labels, columns)
    )


unnamed = partial(pets, named=False)
ARRAYS = {
    "kind": np.array([KINDS.index(kind) + 1 for kind, _, _ in ROWS]),
    "colors": np.array([[*map(COLORS.index, pair)] for _, pair, _ in ROWS]),
    "weight": np.array([weight for *_, weight in ROWS], np.float32),
}


def init(rng, spec):
    del rng, spec
    return Variables({"head": {"w": jnp.linspace(-1, 1, 15).reshape(5, 3)}})


def loss(variables, batch, rng, train):
    del rng, train
    features = [(batch["colors"] == number).sum(axis=1) for number in (-1, 0, 1, 2)]
    logits = jnp.stack([*features, batch["weight"]], axis=1) @ variables.params["head"]["w"]
    return (
        optax.softmax_cross_entropy_with_integer_labels(logits, batch["kind"] - 1),
        variables,
        logits,
    )


def predict(variables, batch):
    return {
        "class": jnp.argmax(loss(variables, batch, None, False)[2], axis=1),
        "kind": batch["kind"],
    }


TASK = Task(init, loss, optax.sgd(0.1), predict_fn=predict, target=Target("kind", 3, 1))


def trainer(workdir, init_from=None, **settings):
    return Trainer(
        TASK,
        TrainerConfig(workdir=str(workdir), global_batch_size=8, **settings),
        jax.devices()[:2],
        warm_start=WarmStart(init_from=init_from and str(init_from)),
    )


def training(records):
    return lambda ctx: train_dataset(records, global_batch=ctx.global_batch_size, hosts=ctx.hosts)


def evaluation(records, **options):
    return lambda ctx: eval_dataset(
        records, global_batch=ctx.global_batch_size, hosts=ctx.hosts, **options
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A work directory after five steps."""
    workdir = tmp_path_factory.mktemp("pets") / "run"
    trainer(workdir).train(training(pets()), max_steps=5)
    return workdir


OTHER = {"kinds": ("owl", "cat", "dog"), "colors": ("white", "black", "red"), "base": 7}


def test_evaluations_and_predictions_in_python_get_the_numbers_of_the_model(run):
    ours, theirs = evaluation(pets()), evaluation(pets(**OTHER))
    expected = trainer(run).evaluate(ours)
    assert trainer(run).evaluate(theirs).metrics == expected.metrics
    both = [[*trainer(run).predict(each)] for each in (ours, theirs)]
    assert [(r["class"], r["kind"]) for r in both[0]] == [(r["class"], r["kind"]) for r in both[1]]
    with pytest.raises(
        OptionError, match="'kind' has the class 'eel', which the model does not have"
    ):
        trainer(run).evaluate(evaluation(pets((*KINDS, "eel"))))
    for prediction, (kind, *_) in zip(
        trainer(run).predict(evaluation(pets(("eel", "cat", "dog", "owl")))), ROWS, strict=True
    ):
        assert prediction["kind"] == 1 + KINDS.index(kind)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 2}, {"cache": "ram"}], ids=str)
def test_workers_and_caches_deliver_the_numbers_of_the_model(run, options):
    source = eval_dataset(pets(colors=("pink", *COLORS[::-1])), global_batch=8, **options)
    as_stored = [batch["colors"].tolist() for batch in source.batches()]
    expected, made = trainer(run).evaluate(evaluation(pets())), trainer(run)
    for _ in range(2):
        found = made.evaluate(source)
        assert (found.metrics, found.unseen) == (expected.metrics, 0)
    assert [batch["colors"].tolist() for batch in source.batches()] == as_stored


def test_evaluations_during_a_training_get_its_numbers(tmp_path):
    inputs = {"same": evaluation(pets()), "other": evaluation(pets(**OTHER))}
    result = trainer(tmp_path, checkpoint_every_steps=2).train_and_evaluate(
        training(pets()), inputs, max_steps=4
    )
    same, other = (
        [each.metrics for each in result.evaluations if each.name == name] for name in inputs
    )
    assert same == other
    assert len(same) == 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hosts_without_a_record_in_a_batch_map_nothing(count):
    described, hidden = pets().info.description, []
    # 40 records in batches of 32 * count: the last host has none in the last batch
    for host in range(count):
        source = eval_dataset(
            pets(colors=("pink", *COLORS)), global_batch=32 * count, hosts=Hosts(host, count)
        )
        mapped = source.described_as(described, {"kind": 3}, strict=True)
        hidden += [batch["_unseen"].tolist() for batch in mapped.batches()]
    assert np.sum([each for part in hidden for each in part]) == 0
    assert mapped.spec["_unseen"].shape == (32,)


@pytest.mark.parametrize("trained", ["named", "unnamed"])
def test_classes_named_on_one_side_only_are_refused_unless_the_user_says_that_they_agree(
    run, tmp_path, trained
):
    model, data, kinds = run, unnamed(), "numbers, and categories"
    if trained == "unnamed":
        model, data, kinds = tmp_path, pets(), "categories, and numbers"
        trainer(model).train(training(unnamed()), max_steps=5)
    said = f"'kind' has {kinds} in the data of the model.*give --same-classes .same_classes=True"
    for call in (trainer(model).evaluate, lambda given: [*trainer(model).predict(given)]):
        with pytest.raises(OptionError, match=said):
            call(evaluation(data))
    result = trainer(model, same_classes=True).evaluate(evaluation(data))
    expected = trainer(run).evaluate(evaluation(pets()))
    assert result.metrics == expected.metrics
    assert str(result).endswith("proven exact; class numbers assumed to match (same_classes)")
    assert (expected.classes, str(expected)[-12:]) == ("", "proven exact")


def test_an_evaluation_of_arrays_says_that_it_could_not_compare_classes(run, tmp_path):
    trainer(tmp_path).train(training(ARRAYS), max_steps=5)
    for model, data in ((run, ARRAYS), (tmp_path, pets()), (tmp_path, ARRAYS)):
        result = trainer(model).evaluate(evaluation(data))
        assert result.classes == "classes not compared"
        saved = json.loads((model / "eval_result.json").read_text())
        assert saved["classes"] == "classes not compared"


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_warm_start_takes_a_new_head_if_only_one_side_names_the_classes(tmp_path, named, columns):
    def described(named):
        """As labels name them, or the statistics of a table."""
        description = pets(named=named and not columns).info.description
        of_kind = ColumnStatistics(
            40, 0, 1.0, 1.0, categories=dict.fromkeys(KINDS, 1) if named else {}
        )
        return replace(description, columns={**description.columns, "kind": of_kind})

    trainer(tmp_path / "first").train(training(pets()), max_steps=1)
    warm = WarmStart(init_from=str(tmp_path / "first"))
    keep(str(tmp_path / "first"), described(named))
    bind_to_description(tmp_path / "first/checkpoints/1", checksum(str(tmp_path / "first")))
    for data, is_new in ((described(named), False), (described(not named), True)):
        begun = as_begun(warm, "kind")(data)
        assert begun.names("kind") == data.names("kind")
        assert has_new_head(warm, begun, "kind") == is_new


@pytest.mark.parametrize("target", [None, TASK.target])
def test_missing_labels_are_told_once_if_the_task_has_no_target(tmp_path, caplog, target):
    task = replace(TASK, target=target)
    arrays = ARRAYS | {"label": np.where(np.arange(40) % 8 == 3, -1, 1), "other": np.full(40, -1)}
    config = TrainerConfig(workdir=str(tmp_path), global_batch_size=8, max_steps=9)
    Trainer(task, config, jax.devices()[:1]).train(training(arrays))
    told = [each for each in caplog.messages if "the task has no Target" in each]
    assert len(told) == (target is None)
    if told:
        assert (
            "of the labels 'label' of a batch are -1, which means that they are missing" in told[0]
        )


class Repeats:
    """Around an input: not one that can be mapped, though it passes everything on."""

    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)

    def batches(self, position):
        return self._source.batches(position)


def test_an_input_around_another_is_taken_as_it_is_or_refused(run):
    same, other = (lambda ctx, r=r: Repeats(evaluation(r)(ctx)) for r in (pets(), pets(**OTHER)))
    assert trainer(run).evaluate(same).metrics == trainer(run).evaluate(evaluation(pets())).metrics
    with pytest.raises(InputError, match="the classes of 'colors' unlike the model"):
        trainer(run).evaluate(other)


@pytest.mark.slow
def test_an_export_refuses_records_with_other_numbers(run, tmp_path):
    only_target = pets(OTHER["kinds"], base=7)
    trainer(run).export(str(tmp_path / "export"), evaluation(only_target), keys=["class"])
    with pytest.raises(ExportError, match="the categories of 'colors' differently"):
        trainer(run).export(str(tmp_path / "other"), evaluation(pets(**OTHER)), keys=["class"])
    assert not (tmp_path / "other").exists()


def test_the_description_is_there_before_the_first_step_and_replaces_that_of_another_start(
    tmp_path,
):
    def breaks(records):
        def input_fn(ctx):
            source = training(records)(ctx)

            def batches(position):
                del position
                raise RuntimeError("before the first step")

            source.batches = batches
            return source

        return input_fn

    for records in (pets(), pets(**OTHER)):
        with pytest.raises(RuntimeError, match="before the first step"):
            trainer(tmp_path).train(breaks(records), max_steps=2)
        assert kept(str(tmp_path)) == records.info.description
    plain = {
        "kind": np.ones(8, np.int32),
        "colors": np.zeros((8, 2), np.int32),
        "weight": np.zeros(8, np.float32),
    }
    trainer(tmp_path).train(lambda _: iter([plain] * 2), max_steps=2)
    # an iterable has no description, and no earlier one is taken for its own
    assert kept(str(tmp_path)) is None
    assert trainer(tmp_path).evaluate(evaluation(pets())).records == 40


def test_a_resumed_training_gets_the_numbers_it_began_with(run, tmp_path):
    trainer(tmp_path).train(training(pets()), max_steps=2)
    assert trainer(tmp_path).train(training(pets()), max_steps=3).step == 3
    with pytest.raises(OptionError, match="'kind' has the class 'eel'"):
        trainer(tmp_path).train(training(pets((*KINDS, "eel"))), max_steps=4)


def test_a_damaged_description_is_an_error_before_anything_is_evaluated(run, tmp_path):
    description = json.loads((run / "description.json").read_text())
    for damage, said in (
        (description | {"labels": None}, "its checksum is"),
        (
            sealed({**description, "labels": {"key": "kind", "base": 1}}),
            "the key labels.names is missing",
        ),
        ({}, "it has no checksum"),
    ):
        (tmp_path / "description.json").write_text(json.dumps(damage))
        with pytest.raises(CheckpointError, match=said):
            kept(str(tmp_path))


CALLS = {
    "evaluate": lambda path: trainer(path).evaluate(evaluation(pets())),
    "predict": lambda path: [*trainer(path).predict(evaluation(pets()))],
    "export": lambda path: trainer(path).export(str(path / "export"), evaluation(pets())),
    "load": lambda path: load(str(path), task=TASK),
    "resume": lambda path: trainer(path).train(training(pets()), max_steps=6),
    "checkpoint_path": lambda path: trainer(path / "x").evaluate(
        evaluation(pets()), checkpoint_path=str(path / "checkpoints/5")
    ),
    "init_from": lambda path: trainer(path / "warm", init_from=path).train(
        training(pets()), max_steps=1
    ),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A run whose classes have other numbers, and one whose data have no description."""
    named, plain = (tmp_path_factory.mktemp(name) for name in ("named", "plain"))
    trainer(named).train(training(pets(("owl", "cat", "dog"))), max_steps=1)
    trainer(plain).train(training(ARRAYS), max_steps=5)
    return named, plain


@pytest.mark.parametrize("call", CALLS)
def test_no_call_reads_a_checkpoint_without_the_description_that_it_was_trained_with(
    run, others, tmp_path, call
):
    changed = shutil.copytree(run, tmp_path / "run")
    description = changed / "description.json"
    description.unlink()
    with pytest.raises(CheckpointError, match=r"description.json is missing .* Copy it, and"):
        CALLS[call](changed)
    shutil.copy(others[0] / "description.json", description)
    with pytest.raises(CheckpointError, match=r"has the checksum \w{8}, and \w{8} is expected"):
        CALLS[call](changed)
    changed = shutil.copytree(others[1], tmp_path / "plain")
    shutil.copy(run / "description.json", changed)
    with pytest.raises(CheckpointError, match=r"and none is expected: .* Remove it"):
        CALLS[call](changed)


def test_a_checkpoint_in_another_directory_needs_its_description_there(run, tmp_path):
    moved = tmp_path / "old_checkpoints"
    shutil.copytree(run / "checkpoints", moved)
    with pytest.raises(CheckpointError, match=r"old_checkpoints/description.json is missing"):
        kept_before(WarmStart(init_from=str(moved / "5")))
    shutil.copy(run / "description.json", moved)
    assert kept_before(WarmStart(init_from=str(moved / "5"))) == pets().info.description


def test_a_tokenizer_of_another_run_is_not_taken_for_the_checkpoints(run, tmp_path):
    changed = shutil.copytree(run, tmp_path / "run")
    (changed / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"Copy it, and tokenizer.json if there is one"):
        CALLS["evaluate"](changed)


def test_a_checkpoint_that_names_no_description_is_read_with_a_warning(run, tmp_path, caplog):
    changed = shutil.copytree(run, tmp_path / "run")
    bind_to_description(changed / "checkpoints/5", None)
    assert CALLS["evaluate"](changed).records == 40
    kept(str(changed))
    assert caplog.text.count("therefore cannot be verified") == 1
    assert CALLS["resume"](changed).step == 6
    caplog.clear()
    assert CALLS["evaluate"](changed).step == 6
    assert "therefore cannot be verified" not in caplog.text


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharacterTokenizer("ab"), None], ids=str)
def test_a_description_that_was_kept_is_read_as_it_was(tmp_path, tokenizer):
    text = tokenizer and TextInfo(tokenizer, 16, "concat", (0.25, 0.0))
    description = replace(pets().info.description, text=text)
    keep(str(tmp_path), description)
    assert kept(str(tmp_path)) == description
