"""The recipe tabular and scikit-learn's MLP on scikit-learn's own tables: the same 5 folds, 3 seeds each.

Usage: python tests/benchmarks/bench_tabular.py [TABLE...]. Each fold is written as csv, converted, trained and
evaluated by the commands; prints the mean accuracy or R2 of both."""

import contextlib
import csv
import io
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn import datasets, model_selection, neural_network, pipeline, preprocessing

from converters import table_to_gcs
from trainer.__main__ import main as train

TABLES = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "diabetes": datasets.load_diabetes,
}
FOLDS, SEEDS, STEPS = 5, 3, 300


def write(path, x, y, names):
    with path.open("w") as file:
        rows = ([*map(repr, row.tolist()), value] for row, value in zip(x, y, strict=True))
        csv.writer(file).writerows([[*(f"column {i}" for i in range(x.shape[1])), "target"], *rows])


def ours(scratch, seed, is_class):
    flags = [f"--data-dir={scratch}/shards", f"--workdir={scratch}/run-{seed}", "--target=target", f"--seed={seed}"]
    batch = ["--global-batch-size=32", f"--max-steps={STEPS}", "--iterations-per-loop=50"]
    train(["tabular", *flags, *batch])
    result = json.loads((scratch / f"run-{seed}/eval_result.json").read_bytes())
    assert result["proven"]
    return result["accuracy" if is_class else "regression/r2"]


def theirs(train_data, test_data, seed, is_class):
    kind = neural_network.MLPClassifier if is_class else neural_network.MLPRegressor
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), kind(max_iter=1000, random_state=seed))
    return model.fit(*train_data).score(*test_data)


def compare(name):
    table = TABLES[name]()
    x, y, is_class = table.data.astype(np.float32), table.target, name != "diabetes"
    kind = model_selection.StratifiedKFold if is_class else model_selection.KFold
    found = {"ours": [], "theirs": []}
    for fit, test in kind(FOLDS, shuffle=True, random_state=0).split(x, y):
        with tempfile.TemporaryDirectory() as made:
            scratch = Path(made)
            (scratch / "raw").mkdir()
            named = [f"class {value}" for value in y] if is_class else list(map(repr, y.tolist()))
            for split, rows in (("train", fit), ("validation", test)):
                write(scratch / f"raw/{split}.csv", x[rows], [named[row] for row in rows], table.feature_names)
            target = "category" if is_class else "float32"
            flags = [f"--raw-data-dir={scratch}/raw", f"--output={scratch}/shards", f"--columns=target={target}"]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                table_to_gcs.main(flags)
                found["ours"] += [ours(scratch, seed, is_class) for seed in range(SEEDS)]
            found["theirs"] += [theirs((x[fit], y[fit]), (x[test], y[test]), seed, is_class) for seed in range(SEEDS)]
    means = ", ".join(f"{who} {np.mean(scores):.4f} ± {np.std(scores):.4f}" for who, scores in found.items())
    print(f"{name}: {'accuracy' if is_class else 'R2'}: {means}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        compare(name)
