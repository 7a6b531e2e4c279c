"""Mutants of the files that infeed writes and reads back, each read by every command that reads it: .ci/sweep.

python tests/e2e/file_sweep.py [mutants] [seed]

Each command runs in a forked process with a limit. A mutant must change nothing, or be one error. Exits 1 after one
that ended in a traceback, was not noticed, executed code from the directory, or outlasted the limit."""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from file_mutants import mutants
from raw_data.records import prepare_tfds
from raw_data.texts import RawTexts
from stages import Stages

SECONDS = 30
COLUMNS = ("same", "refused", "shown as it is", "silent", "traceback", "foreign code", "hang")
FAILURES = COLUMNS[3:]
EVIL = "open('executed', 'w').write('foreign code')\nclass X: pass\nclass Config: pass\n"
NOISE = re.compile(r"\d+(\.\d+)? ?(ms|s|MB/s|KB/s|records/s|bytes|KB|MB)\b|\"bytes\": \d+|0x[0-9a-f]+|[─ ]+")
ERROR = re.compile(r"\w[\w.]*(Error|Exception)\b")  # the last line of a traceback
TOLD = re.compile(
    r"damaged|has changed|is not JSON|checksum|cannot be|cannot locate|does not|Traceback|no history|lacks|warning:"
)


@dataclass(frozen=True)
class Case:
    """A file, and the commands that read it. plain: whether it is meant to be edited, or is not ours, so that another
    value in it is another result."""

    path: str
    reads: Sequence[Callable[[], object]]
    plain: bool = False


def command(module: str, *options: str) -> Callable[[], object]:
    """A command of infeed in this process."""

    def run() -> None:
        from importlib import import_module

        from pipeline.tools.command import exit_with

        exit_with(lambda: import_module(module).main([*options]))

    return run


def page(module: str, *options: str) -> Callable[[], object]:
    """The same; prints the page, too."""

    def run() -> None:
        command(module, *options, "--html=page.html")()
        print(Path("page.html").read_text())

    return run


def restored() -> None:
    """The state in the checkpoint of step 20 of `saved`, as training reads it."""
    from trainer.checkpointing.manager import CheckpointManager

    found = CheckpointManager(settings()).restore(20, state(0))
    print(found.input_state, found.config["seed"], [leaf.tolist() for leaf in leaves(found.state)])


def warm_started() -> None:
    """The arrays of `saved`, as a warm start and the list of checkpoints read them."""
    from trainer.warm_start.loading import open_weights

    weights = open_weights("saved")
    print([(name, weights.read(name).tolist()) for name in sorted(weights.arrays)])


def foreign() -> None:
    """The arrays of a checkpoint of Orbax alone."""
    from trainer.warm_start.loading import open_weights

    weights = open_weights("foreign")
    print([(name, weights.read(name).tolist()) for name in sorted(weights.arrays)])


def settings() -> Any:
    from trainer.config import TrainerConfig

    return TrainerConfig(workdir="saved", global_batch_size=16)


def state(step: int) -> Any:
    import jax.numpy as jnp
    import optax

    from trainer.state import TrainState
    from trainer.task import Variables

    params = {"w": jnp.arange(12.0).reshape(3, 4) + step, "layers": [jnp.full(3, step, jnp.bfloat16)]}
    return TrainState(
        jnp.int32(step), Variables(params), (optax.EmptyState(), jnp.float32(0.5)), jnp.arange(2, dtype=jnp.uint32)
    )


def leaves(tree: Any) -> list[Any]:
    import jax
    import numpy as np

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def exported() -> None:
    """What a callback that exports the best model reads of the newest export."""
    from trainer.modes.evaluation import measured

    print(measured("export", "loss"))


def texts() -> None:
    """The tokens of a text, and their text."""
    from pipeline.tokenizers import read_text_info

    info = read_text_info("texts")
    tokens = info.tokenizer.encode_batch(["Ein Käse 7.", "Zeile"])
    print(info.sequence_length, info.packing, info.tokenizer.vocabulary_size, info.tokenizer.unknown)
    print([(each.tolist(), info.tokenizer.decode(each)) for each in tokens])


def records(directory: str) -> Callable[[], object]:
    """The records of a dataset, and its schema."""

    def read() -> None:
        from pipeline.datasets import open_dataset

        print(list(itertools.islice(open_dataset(directory, "train").examples(), 5)))

    return read


def resumed() -> None:
    """What a training reads of the last one's scalars as it resumes."""
    from trainer.events.metrics_file import MetricsFile

    shutil.copytree("run/train", "train")
    MetricsFile("train", after=7).close()
    print(len(Path("train/metrics.jsonl").read_bytes().splitlines()))


def readers(run: str) -> tuple[list[Callable[[], object]], ...]:
    """Of the history of a work directory; of its results; of its checkpoints."""
    step, seen = (run, "--step=5"), "trainer.seen"
    return (
        [command(seen, *step), command(seen, *step, "--json")],
        [command("trainer.report", run), command("trainer.report", run, "--json")],
        [command("trainer.checkpoints", run, "--json"), command("trainer.checkpoints", run)],
    )


REWIND, REPORT, LIST = readers("run")
OLD_REWIND, OLD_REPORT, OLD_LIST = readers("old")
SAVED = [restored, warm_started, command("trainer.checkpoints", "saved")]
VERIFY = command("pipeline.verify", "texts")
TEXTS = [command("pipeline.describe", "texts"), VERIFY, texts]
RESHARD = ("--dataset=tiny", "--data-dir=tfds", "--output=out", "--splits=train")
TFDS = [records("tfds/tiny/1.2.0"), command("converters.tfds_to_gcs", *RESHARD)]
DATA = [records("shards"), command("pipeline.describe", "shards"), command("pipeline.verify", "shards")]
STEP = "saved/checkpoints/20"
CASES = {
    "segments.jsonl": Case("run/segments.jsonl", [*REWIND, *REPORT]),
    "segments.jsonl, old": Case("old/segments.jsonl", [*OLD_REWIND, *OLD_REPORT], plain=True),
    "metrics.jsonl": Case("run/train/metrics.jsonl", [*REWIND[:1], *REPORT, resumed], plain=True),
    "evaluations.json": Case("run/evaluations.json", [*LIST, *REPORT]),
    "evaluations.json, old": Case("old/evaluations.json", [*OLD_LIST, *OLD_REPORT], plain=True),
    "eval_result.json": Case("run/eval_result.json", REPORT, plain=True),
    "train_result.json": Case("run/train_result.json", REPORT, plain=True),
    "text.json": Case("texts/text.json", TEXTS),
    "tokenizer.json": Case("texts/tokenizer.json", TEXTS),
    "infeed.json": Case("export/7/assets.extra/infeed.json", [exported], plain=True),
    "contents": Case(f"{STEP}/contents/metadata", SAVED),
    "_METADATA": Case(f"{STEP}/state/_METADATA", SAVED),
    "_METADATA, foreign": Case("foreign/_METADATA", [foreign], plain=True),
    "_CHECKPOINT_METADATA": Case(f"{STEP}/_CHECKPOINT_METADATA", SAVED),
    "_sharding": Case(f"{STEP}/state/_sharding", SAVED),
    "manifest.ocdbt": Case(f"{STEP}/state/manifest.ocdbt", SAVED),
    "array_metadatas": Case(f"{STEP}/state/array_metadatas/process_0", SAVED),
    "features.json": Case("tfds/tiny/1.2.0/features.json", TFDS, plain=True),
    "dataset_info.json": Case("tfds/tiny/1.2.0/dataset_info.json", TFDS, plain=True),
    "manifest.json": Case("shards/manifest.json", DATA),
    "index": Case("shards/_index/train.npy", DATA),
    "summary": Case("shards/_summary/train.json", [command("pipeline.describe", "shards")], plain=True),
}


def make() -> None:
    """Everything that the commands read, in the current directory."""
    import jax
    import orbax.checkpoint as ocp

    from converters import digits_raw, imagenet_to_gcs
    from trainer.checkpointing.manager import CheckpointManager, Saved

    digits_raw.write_raw(Path("digits"))
    imagenet_to_gcs.main(
        ["--raw-data-dir=digits", "--gcs-output-path=shards", "--label-file=digits/synsets.txt", "--splits=train"]
    )
    Path("tokenizer.json").write_text(_tokenizer())
    RawTexts(Path("raw")).write().convert(
        "texts",
        "--max-bad-records=9",
        "--sequence-length=64",
        "--validation-fraction=0.2",
        "--tokenizer=tokenizer.json",
    )
    prepare_tfds(Path("tfds"))
    with CheckpointManager(settings()) as checkpoints:
        checkpoints.resume_step()
        for step in (10, 20):
            checkpoints.save(Saved(step, state(step), {"position": step}, settings().to_json()))
    with ocp.StandardCheckpointer() as writer:
        writer.save(Path("foreign").absolute(), {"params": {"w": jax.numpy.arange(6.0), "b": jax.numpy.ones(2)}})
    Path("export/7/assets.extra").mkdir(parents=True)
    Path("export/7/saved_model.pb").touch()
    origin = {"step": 7, "workdir": "run", "metrics": {"loss": 0.5, "accuracy": 0.9}}
    told = {"origin": origin, "signatures": {}, "labels": {}, "versions": {"jax": "1"}, "verified": {"records": 21}}
    Path("export/7/assets.extra/infeed.json").write_text(json.dumps(told, indent=1) + "\n")
    Path("evilmod.py").write_text(EVIL)
    train = ["digits", "--data-dir=shards", "--workdir=run", "--max-steps=20", "--checkpoint-every-steps=10"]
    _trained([*train, "--train-split=train[:50%]", "--eval-split=train[50%:60%]", "--keep-best=accuracy"])
    _make_old()


def _make_old() -> None:
    """A work directory as a version before the checksums left it."""
    shutil.copytree("run", "old")
    for path in (Path("old/segments.jsonl"), Path("old/evaluations.json")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        fields = [{key: value for key, value in json.loads(line).items() if key != "checksum"} for line in lines]
        path.write_text("".join(json.dumps(each) + "\n" for each in fields))


def _trained(options: list[str]) -> None:
    from trainer.__main__ import main

    if code := main(options):
        sys.exit(f"training ended with {code}")


def _tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["Ein Käse", "Zeile 1"],
        trainers.BpeTrainer(vocab_size=270, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet),
    )
    return made.to_str()


@dataclass(frozen=True)
class Outcome:
    """Exit code, None after the limit; what was printed to stdout and to stderr; whether foreign code ran."""

    code: int | None
    out: str
    err: str
    executed: bool

    @property
    def meaning(self) -> tuple[object, ...]:
        """Without speeds, sizes of files and the widths of tables."""
        return self.code, NOISE.sub(" ", self.out), NOISE.sub(" ", self.err)


def outcome(read: Callable[[], object], scratch: Path, place: Path, seconds: float = SECONDS) -> Outcome:
    """What a command does, in a process of its own, in this directory."""
    place.mkdir(exist_ok=True)
    if not (pid := os.fork()):
        _child(read, place, scratch)
    code, stop = None, time.monotonic() + seconds
    while code is None and time.monotonic() < stop:
        done, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else code
        time.sleep(0.005)
    if code is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    printed = [(scratch / name).read_text(errors="replace") for name in ("out", "err")]
    return Outcome(code, printed[0], printed[1], (place / "executed").exists())


def beside(read: Callable[[], object], scratch: Path) -> Outcome:
    """The outcome in a new directory of links to everything."""
    place = scratch / "place"
    place.mkdir()
    for path in (scratch / "whole").iterdir():
        (place / path.name).symlink_to(path)
    try:
        return outcome(read, scratch, place)
    finally:
        shutil.rmtree(place)


def _child(read: Callable[[], object], place: Path, scratch: Path) -> None:
    code = 1
    try:
        from pipeline.tools.command import exit_with
        from trainer.__main__ import _report

        os.chdir(place)
        sys.path.append("")  # so that a name in a file finds the code in the directory
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", 0), encoding="utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(
            os.fdopen(2, "wb", 0), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        warnings.simplefilter("ignore")
        sys.unraisablehook = _report  # as in a training
        try:
            exit_with(lambda: read() and None)
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def judged(case: Case, before: Outcome, after: Outcome) -> str:
    """The column of a mutant's outcome."""
    if after.executed:
        return "foreign code"
    if after.code is None:
        return "hang"
    if "Traceback (most recent" in after.err + after.out or after.code < 0:
        return "traceback"
    if after.meaning == before.meaning:
        return "same"
    new = {*f"{after.out}\n{after.err}".splitlines()} - {*f"{before.out}\n{before.err}".splitlines()}
    if (after.code == 2 and after.err.count("error: ") == 1) or any(map(TOLD.search, new)):
        return "refused"
    return "shown as it is" if case.plain else "silent"


def sweep(count: int, seed: int, scratch: Path) -> Mapping[str, Counter[str]]:
    """File -> column -> mutants; the worst outcome of the commands that read a mutant counts. Prints each failure."""
    found = {name: Counter[str]() for name in CASES}
    before = {name: [beside(read, scratch) for read in case.reads] for name, case in CASES.items()}
    for name, outcomes in before.items():
        for number, each in enumerate(outcomes):
            assert (each.code, each.executed) == (0, False), (
                f"{name}, read {number}: {each.err[-2000:]}{each.out[-2000:]}"
            )
    streams = {
        name: mutants((scratch / "whole" / case.path).read_bytes(), seed + at)
        for at, (name, case) in enumerate(CASES.items())
    }
    for number in range(count):
        name = list(CASES)[number % len(CASES)]
        case, (how, changed) = CASES[name], next(streams[name])
        path = scratch / "whole" / case.path
        kept = path.read_bytes()
        path.write_bytes(changed)
        worst = "same"
        try:
            for at, read in enumerate(case.reads):
                after = beside(read, scratch)
                column = judged(case, before[name][at], after)
                if column in FAILURES:
                    told = (after.err.strip() or after.out.strip()).splitlines()
                    last = [line for line in told if ERROR.match(line)] or told[-1:]
                    print(
                        f"{name}: {how}: {column} by read {at}, {after.code}: {last}"[:600], file=sys.stderr, flush=True
                    )
                worst = max(worst, column, key=COLUMNS.index)
        finally:
            path.write_bytes(kept)
        found[name][worst] += 1
    return found


def main(count: int = 1000, seed: int = 42) -> None:
    """Prints a row for each file, and the totals."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        _import_all()
        made = outcome(make, scratch, scratch / "whole", 120)  # only a child starts JAX's backend
        if made.code:
            sys.exit(f"cannot make the files: {made.err}")
        found = sweep(count, seed, scratch)
    print(f"| file | mutants | {' | '.join(COLUMNS)} |")
    print(f"| --- |{' --- |' * (len(COLUMNS) + 1)}")
    for name, counts in found.items():
        print(f"| {name} | {counts.total()} | {' | '.join(str(counts[column]) for column in COLUMNS)} |")
    total = sum(found.values(), Counter())
    print(
        f"\n{count} mutants, seed {seed}: {', '.join(f'{total[column]} {column}' for column in COLUMNS)}; "
        f"{time.monotonic() - begun:.0f} s"
    )
    sys.exit(any(total[column] for column in FAILURES))


def _import_all() -> None:
    from importlib import import_module

    from beam_jobs import graph

    graph.pipeline_of = Stages  # conversions without Beam
    names = ("trainer.trainer", "trainer.__main__", "trainer.report", "trainer.seen", "trainer.checkpoints")
    names += ("pipeline.verify", "pipeline.describe", "pipeline.datasets", "trainer.checkpointing.manager", "optax")
    names += ("trainer.warm_start.loading", "tokenizers", "jinja2")
    for name in (*names, "tensorflow_datasets", "converters.tfds_to_gcs"):
        import_module(name)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
