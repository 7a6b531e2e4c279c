"""The numbers of other data mean to a model what they meant in its training: mapped by name, or refused by name."""

from dataclasses import dataclass, replace

import numpy as np
import optax
import pytest
from flax import nnx
from narrow_recipes import NARROW, narrow_models, row
from sweep import SWEEP

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.description import Description
from pipeline.errors import ExportError, OptionError
from pipeline.ops import DecodePng
from pipeline.raw.cells import MISSING
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.schema import ColumnStatistics, Feature, Labels, Schema
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.open_dataset import open_dataset
from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer
from trainer.checkpointing.kept_data import kept
from trainer.checkpointing.warm_start_loading import open_weights
from trainer.commands.loading import recipe_class
from trainer.config import TrainerConfig
from trainer.mesh.batch_spec import named_leaves
from trainer.metrics.classes import Accuracy
from trainer.nnx_task import nnx_task
from trainer.recipe import DataRecipe, settings
from trainer.recipes.tiny import tiny_images
from trainer.trainer import Trainer

TEXTS, SIZES = ("char_lm", "byte_lm"), {"global_batch_size": 16, "max_steps": 3}
LABEL = "image/class/label"
TABLE = Schema(
    "table", {"city": Feature("int64"), "kind": Feature("int64"), "area": Feature("float32")}
)
CITIES, KINDS = ("Bonn", "Oslo", "Rome"), ("high", "low", "mid")


def table(rows, cities=CITIES, kinds=KINDS, mean=0.0, deviation=1.0):
    """Records of a table: rows of (city, kind, area) by name, in the numbers of these lists."""
    columns = {
        "city": ColumnStatistics(len(rows), 0, categories=dict.fromkeys(cities, 1)),
        "kind": ColumnStatistics(len(rows), 0, categories=dict.fromkeys(kinds, 1)),
        "area": ColumnStatistics(len(rows), 0, mean, deviation, -9.0, 9.0),
    }
    examples = [{"city": cities.index(c), "kind": kinds.index(k), "area": a} for c, k, a in rows]
    return ExampleRecords("rows", TABLE, examples, description=Description(TABLE, None, columns))


def table_rows(cities=CITIES, kinds=KINDS, count=70):
    rng = np.random.default_rng(5)
    return [
        (cities[rng.integers(len(cities))], kinds[rng.integers(len(kinds))], rng.normal())
        for _ in range(count)
    ]


def examples_of(records):
    """The records as dicts."""
    return [
        {
            key: value[0] if len(value) == 1 else value
            for key, value in decode_example(payload).items()
        }
        for payload in open_dataset(records)
    ]


def renamed(records, names, base, wanted=None):
    """Images with their classes in this list, numbered from `base`. wanted: leaves out images of other classes."""
    named = [(each, records.info.labels.name_of(each[LABEL])) for each in examples_of(records)]
    numbered = [
        {**each, LABEL: names.index(name) + base}
        for each, name in named
        if wanted is None or name in wanted
    ]
    return ExampleRecords("pictures", records.info.layout, numbered, Labels(LABEL, base, names))


def reading(recipe, mode, records):
    """The recipe in this mode, with these records as the split that it reads: there are no others."""
    other = replace(recipe, mode=mode)
    vars(other)["train_records" if mode == "train" else "eval_records"] = open_dataset(records)
    return other


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(name): the recipe after two steps on its tiny records, or on table(table_rows()), and these records."""
    runs = {}

    def run(name):
        if name not in runs:
            kind, directory = recipe_class(name), tmp_path_factory.mktemp(name)
            defaults = kind.__dataclass_fields__["trainer"].default
            sizes = {"global_batch_size": 64, "eval_batch_size": 48, "max_steps": 100}
            settings = replace(defaults, workdir=str(directory / "run"), **sizes)
            options = NARROW[name] | ({"target": "kind"} if name == "tabular" else {})
            recipe = kind(data_dir=str(directory / "nowhere"), trainer=settings, **options)
            records = (
                table(table_rows()) if name == "tabular" else kind.tiny_records(recipe, "train")
            )
            training = reading(recipe, "train", records)
            Trainer(training.task(), settings).train(training.train_input, max_steps=2)
            runs[name] = recipe, records
        return runs[name]

    with narrow_models():
        yield run


def evaluated(recipe, records):
    reader = reading(recipe, "evaluate", records)
    return Trainer(reader.task(), reader.trainer).evaluate(reader.eval_input)


def of_images(name):
    return recipe_class(name).label_base if hasattr(recipe_class(name), "label_base") else 0


def in_another_order(name, records):
    if name == "tabular":
        return table(table_rows()), table(table_rows(), CITIES[::-1], ("mid", "high", "low"))
    names = records.info.labels.names
    return records, renamed(records, (*names[3:], *names[:3]), of_images(name) + 1)


def a_subset(name, records):
    if name == "tabular":
        rows = table_rows(CITIES[1:], KINDS[1:])
        return table(rows), table(rows, CITIES[1:], KINDS[1:])
    some = records.info.labels.names[4:7]
    same = renamed(records, records.info.labels.names, of_images(name), some)
    return same, renamed(records, some, 0, some)


def other_statistics(_, records):
    del records
    return table(table_rows()), table(table_rows(), mean=40.0, deviation=7.0)


def a_test_split_alone(_, records):
    return records, records  # `reading` has no other split


CLASSIFIERS = [name for name in NARROW if name not in TEXTS]
SOME = NARROW if SWEEP else ["images", "tabular"]
MAPPED = [
    *(row(name, in_another_order) for name in CLASSIFIERS),
    ("tabular", other_statistics),
    *(pytest.param(name, a_subset, marks=pytest.mark.slow) for name in SOME),
    *(pytest.param(name, a_test_split_alone, marks=pytest.mark.slow) for name in SOME),
]


@pytest.mark.parametrize(("name", "case"), MAPPED, ids=lambda each: getattr(each, "__name__", each))
def test_the_same_records_in_other_numbers_have_the_same_metrics(trained, name, case):
    recipe, records = trained(name)
    as_in_training, otherwise = case(name, records)
    expected, found = evaluated(recipe, as_in_training), evaluated(recipe, otherwise)
    assert expected.metrics == found.metrics
    assert (found.proven, found.unseen, found.labelled) == (True, 0, found.records)


def a_new_class(name, records):
    if name == "tabular":
        return table(
            table_rows(kinds=("high", "zero")), CITIES, ("high", "zero")
        ), "'kind' has the class 'zero', which"
    names = (*records.info.labels.names[1:], "a new one")
    examples = examples_of(records)
    new = ExampleRecords(
        "new", records.info.layout, examples, Labels(LABEL, of_images(name), names)
    )
    return new, "'image/class/label' has the class 'a new one', which the model does not have"


def another_tokenizer_of_equal_size(name, records):
    text = records.info.description.text
    other = (
        CharacterTokenizer(text.tokenizer.alphabet[::-1])
        if name == "char_lm"
        else CharacterTokenizer()
    )
    if name == "byte_lm":
        other = CharacterTokenizer(
            "".join(map(chr, range(0x100, 0x100 + ByteTokenizer.vocabulary_size - 4)))
        )
    assert other.vocabulary_size == text.tokenizer.vocabulary_size
    described = replace(records.info.description, text=replace(text, tokenizer=other))
    said = (
        "its tokenizer has alphabet"
        if name == "char_lm"
        else "its tokenizer has name 'characters', and that of"
    )
    return ExampleRecords(
        "new", records.info.layout, examples_of(records), description=described
    ), said


def other_features(name, records):
    key = {"tabular": "area"}.get(name, "tokens" if name in TEXTS else LABEL)
    schema = records.info.layout
    shape = {"tokens": (32,)}.get(key, ())
    feature = Feature("int64" if key in ("area", "tokens") else "float32", shape)
    schema = replace(schema, features={**schema.features, key: feature})
    value = np.zeros(shape, np.int64 if feature.dtype == "int64" else np.float32).tolist()
    examples = [{**each, key: value} for each in examples_of(records)]
    described = replace(records.info.description, schema=schema)
    return ExampleRecords(
        "new", schema, examples, description=described
    ), f"'{key}' is {feature.dtype}"


def numbers_for_categories(_, records, column="city"):
    columns = {
        **records.info.description.columns,
        column: ColumnStatistics(9, 0, 1.0, 1.0, 0.0, 2.0),
    }
    described = replace(records.info.description, columns=columns)
    said = f"'{column}' has numbers, and categories in the data of the model"
    return ExampleRecords("new", TABLE, examples_of(records), description=described), said


def numbers_for_classes(name, records):
    if name == "tabular":
        return numbers_for_categories(name, records, "kind")
    said = "'image/class/label' has numbers, and categories in the data of the model"
    return ExampleRecords("new", records.info.layout, examples_of(records)), said


REFUSED = [
    *(row(name, a_new_class) for name in CLASSIFIERS),
    *(row(name, numbers_for_classes) for name in CLASSIFIERS),
    *(row(name, another_tokenizer_of_equal_size) for name in TEXTS),
    *(row(name, other_features) for name in NARROW),
    ("tabular", numbers_for_categories),
]


@pytest.mark.parametrize(
    ("name", "case"), REFUSED, ids=lambda each: getattr(each, "__name__", each)
)
def test_what_means_something_else_is_refused_by_name(trained, name, case):
    recipe, records = trained(name)
    other, said = case(name, records)
    with pytest.raises(OptionError) as refused:
        evaluated(recipe, other)
    assert said in str(refused.value)


def test_every_recipe_has_a_row():
    from trainer.commands import RECIPES

    assert NARROW.keys() == RECIPES.keys()


def test_a_category_that_the_model_has_never_seen_counts_as_missing_and_is_counted(trained):
    recipe, _ = trained("tabular")
    rows = table_rows(("Oslo", "Rome", "Zug"))
    found = evaluated(recipe, table(rows, ("Oslo", "Rome", "Zug")))
    assert found.unseen == sum(city == "Zug" for city, _, _ in rows) > 0
    as_missing = table(rows, ("Zug", *CITIES))  # for the model, "Zug" - 1 is -1
    examples = [{**each, "city": each["city"] - 1} for each in examples_of(as_missing)]
    missing = ExampleRecords(
        "rows", TABLE, examples, description=table(table_rows()).info.description
    )
    assert {each["city"] for each in examples} == {MISSING, 1, 2}
    expected = evaluated(recipe, missing)
    assert (expected.metrics, expected.unseen) == (found.metrics, 0)


def test_an_export_is_not_verified_with_records_that_number_categories_differently(
    trained, tmp_path
):
    recipe, records = trained("tabular")
    reader = reading(recipe, "export", in_another_order("tabular", records)[1])
    with pytest.raises(ExportError, match="split numbers the categories of 'city' differently"):
        Trainer(reader.task(), reader.trainer).export(str(tmp_path), reader.eval_input)
    assert not list(tmp_path.iterdir())


def test_tables_that_number_classes_differently_train_like_tables_that_do_not(tmp_path):
    kind = recipe_class("tabular")
    first, second = table_rows(count=40), table_rows(("Zug", "Oslo"), ("mid", "top"), 40)
    cities, kinds = (*CITIES, "Zug"), (*KINDS, "top")
    alike = [table(rows, cities, kinds) for rows in (first, second)]
    apart = [table(first), table(second, ("Zug", "Oslo"), ("top", "mid"))]
    results = []
    for number, records in enumerate((alike, apart)):
        defaults = kind.__dataclass_fields__["trainer"].default
        sizes = {"global_batch_size": 16, "eval_batch_size": 48, "max_steps": 7}
        config = replace(defaults, workdir=str(tmp_path / str(number)), **sizes)
        recipe = kind(data_dir="nowhere", target="kind", widths=(8,), trainer=config)
        training = reading(recipe, "train", records)
        state = Trainer(training.task(), config).train(training.train_input).state
        page = kept(config.workdir)
        assert [*page.columns["city"].categories] == [*cities]
        assert [*page.columns["kind"].categories] == [*kinds]
        numbers = [
            (each["city"].item(), each["kind"].item()) for each in training.train_records.examples()
        ]
        leaves = [
            np.asarray(leaf).tolist() for leaf in named_leaves(state.variables.params).values()
        ]
        results.append((numbers, leaves, evaluated(recipe, records).metrics))
        assert evaluated(recipe, apart[1]).metrics == evaluated(recipe, alike[1]).metrics
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS if SWEEP else ["images", "tabular"])
def test_a_label_that_is_no_class_names_its_record_in_training_and_evaluation(
    trained, name, tmp_path
):
    recipe, records = trained(name)
    key = "kind" if name == "tabular" else LABEL
    examples = examples_of(records)
    examples[7][key] = 10_000
    bad = ExampleRecords(
        "pictures", records.info.layout, examples, description=records.info.description
    )
    said = rf"pictures, record 7: '{key}' is 10000, which is not one of its \d+ classes"
    with pytest.raises(Exception, match=said):
        evaluated(recipe, bad)
    training = reading(
        replace(recipe, trainer=replace(recipe.trainer, workdir=str(tmp_path))), "train", bad
    )
    with pytest.raises(Exception, match=said):
        Trainer(training.task(), training.trainer).train(training.train_input)


def warmly(recipe, records, workdir):
    """The recipe's training on these records that begins with the model of `recipe`; its parameters after no step."""
    settings = replace(recipe.trainer, workdir=str(workdir))
    warm = replace(recipe.warm_start, init_from=recipe.trainer.workdir)
    training = reading(replace(recipe, trainer=settings, warm_start=warm), "train", records)
    still = replace(training.task(), optimizer=optax.sgd(0.0))
    result = Trainer(still, settings, warm_start=warm).train(training.train_input, max_steps=1)
    return named_leaves(result.state.variables.params), kept(str(workdir))


def parameters(recipe):
    weights = open_weights(recipe.trainer.workdir)
    return {name: weights.read(name) for name in weights.arrays}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "tabular"])
def test_a_warm_start_keeps_the_head_only_if_the_classes_have_equal_names(trained, name, tmp_path):
    recipe, records = trained(name)
    before = parameters(recipe)
    _, same = in_another_order(name, records)
    new = ("a", "b", "c")
    others = (
        table(table_rows(kinds=new), CITIES, new)
        if name == "tabular"
        else a_new_class(name, records)[0]
    )
    unnamed = numbers_for_classes(name, records)[0] if name == "tabular" else others
    starts = ((records, False), (others, True), (same, True), (unnamed, True))
    for number, (data, is_new) in enumerate(starts):
        after, _ = warmly(recipe, data, tmp_path / str(number))
        for path, array in after.items():
            new = is_new and path.startswith("head/")
            assert np.array_equal(array, before[path]) == (not new), path


@pytest.mark.slow
def test_a_warm_start_on_a_table_keeps_statistics_and_vocabularies_but_takes_the_new_classes(
    trained, tmp_path
):
    recipe, records = trained("tabular")
    rows = table_rows(("Zug", "Rome", "Bonn"), ("a", "b"))
    data = table(rows, ("Zug", "Rome", "Bonn"), ("a", "b"), mean=40.0)
    _, description = warmly(recipe, data, tmp_path / "run")
    ours, theirs = records.info.description.columns, data.info.description.columns
    assert description.columns == {
        "city": ours["city"],
        "area": ours["area"],
        "kind": theirs["kind"],
    }
    after = reading(
        replace(recipe, trainer=replace(recipe.trainer, workdir=str(tmp_path / "run"))),
        "evaluate",
        data,
    )
    still = replace(after.task(), optimizer=optax.sgd(0.0))  # as that training
    assert Trainer(still, after.trainer).evaluate(after.eval_input).unseen == sum(
        city == "Zug" for city, *_ in rows
    )


READING = {
    "ops": [DecodePng("image/encoded", into="image", shape=(8, 8, 1))],
    "keys": ("image", LABEL),
}


@dataclass(frozen=True, kw_only=True)
class Own(DataRecipe):
    """A recipe that reads its class names from the records, as users write them."""

    trainer: TrainerConfig = settings(**SIZES)

    def tiny_records(self, split):
        records = tiny_images("train", (8, 8, 1), 4)
        names = records.info.labels.names
        return records if split == "train" else renamed(records, (*names[2:], *names[:2]), 5)

    def task(self):
        labels = self.eval_records.labels
        assert labels == self.description.labels

        def loss(model, batch):
            logits = model(batch["image"].reshape(-1, 64) / 255)
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, batch[LABEL] - labels.base
            ), logits

        metrics = {"accuracy": Accuracy(lambda _, batch: batch[LABEL] - labels.base)}
        return nnx_task(
            lambda rngs: nnx.Linear(64, labels.count, rngs=rngs), loss, optax.adam(0.01), metrics
        )

    def train_input(self):
        return train_dataset(self.train_records, **READING)

    def eval_input(self):
        return eval_dataset(self.eval_records, **READING)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_a_recipe_of_ones_own_gets_the_models_class_names_and_numbers(tmp_path, mode):
    recipe = Own(tiny=True, eval_split="train", trainer=settings(workdir=str(tmp_path), **SIZES))
    Trainer(recipe.task(), recipe.trainer).train(recipe.train_input)
    found = [
        Trainer(other.task(), other.trainer).evaluate(other.eval_input)
        for other in (
            replace(recipe, mode=mode, eval_split=split) for split in ("train", "validation")
        )
    ]
    assert found[0].metrics == found[1].metrics
    assert found[0].labelled == found[1].labelled == 130
