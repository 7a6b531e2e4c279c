"""What hosts compare before they begin, with threads for hosts; real processes are in tests/e2e."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from host_stores import exchanges_of

from trainer.checkpointing.owner import mark_workdir
from trainer.config import partition_rules
from trainer.loop.job import Job
from trainer.loop.preflight import agree, difference, facts_of
from trainer.loop.session import Session
from trainer.mesh.placement import Placement


@pytest.fixture
def outcomes(tmp_path):
    """outcomes([facts of each host]) -> what `agree` gives on each: None, or the text of its error."""

    def run(facts, seconds=5.0, absent=(), workdir="model"):
        exchanges = exchanges_of(len(facts))

        def outcome(index):
            directory = str(tmp_path / workdir.format(index))
            mark = mark_workdir(directory) if index == 0 else ""
            try:
                agree(exchanges[index], lambda: facts[index], directory, mark, seconds)
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(len(facts)) as pool:
            return list(
                pool.map(outcome, [index for index in range(len(facts)) if index not in absent])
            )

    return run


def test_hosts_with_equal_facts_continue(outcomes):
    assert outcomes([{"seed": 3, "fingerprint": "abc"}] * 4) == [None] * 4


@pytest.mark.parametrize("odd", [0, 2])
def test_every_host_reports_which_host_differs_and_how(outcomes, odd):
    facts = [{"seed": 3, "fingerprint": "xyz" if i == odd else "abc"} for i in range(4)]
    others = ", ".join(str(i) for i in range(4) if i != odd)
    text = f"DisagreementError: the hosts do not agree: fingerprint is abc on hosts {others} and xyz on host {odd}. St"
    assert [outcome[: len(text)] for outcome in outcomes(facts)] == [text] * 4


def test_a_missing_host_is_named_on_the_others(outcomes):
    expected = "hosts 1, 3 of 4 did not start the same call within 0.3 s (stall_seconds)."
    assert [expected in outcome for outcome in outcomes([{}] * 4, seconds=0.3, absent=(1, 3))] == [
        True,
        True,
    ]


def test_a_missing_host_0_is_named_by_the_others(outcomes):
    (outcome,) = outcomes([{}] * 2, seconds=0.2, absent=(0,))
    assert outcome.startswith(
        "HostError: host 0 of 2 did not make the same call within 0.4 s: see its log."
    )


@pytest.mark.parametrize(
    ("limit", "superbatch_bytes"), [({}, 2**28), ({"bytes_limit": 64 * 10**9}, 3_200_000_000)]
)
def test_host_0_decides_which_share_of_its_memory_a_super_batch_takes(
    dense_task, config, monkeypatch, limit, superbatch_bytes
):
    processes = []
    monkeypatch.setattr("trainer.loop.session.share_cores", processes.append)
    settings = config()
    mesh = Placement.of(jax.devices()[:1]).mesh

    def decided(exchange):
        memory = limit if exchange.index == 0 else {"bytes_limit": 10**12}
        device = SimpleNamespace(memory_stats=lambda: memory)
        with_memory = SimpleNamespace(
            local_devices=[device], devices=mesh.devices, shape=mesh.shape
        )
        job = Job(dense_task, settings, Placement(with_memory))
        session = Session(job, SimpleNamespace(exchange=exchange), None, None, None)
        session.agree_on([], 0, 10)
        return session.superbatch_bytes

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(decided, exchanges_of(2))) == [superbatch_bytes] * 2
    assert processes == [2, 2]


def test_different_work_directories_of_hosts_are_refused_before_training(
    outcomes, tmp_path, monkeypatch
):
    monkeypatch.setattr("trainer.loop.preflight.SHARED_DISK_SECONDS", 0.2)
    (text, *others) = outcomes([{"seed": 3}] * 2, workdir="model of host {}")
    assert others == [text]
    assert text.startswith(
        "DisagreementError: the hosts do not agree: workdir is host 0's on host 0 and another directory "
        f"({tmp_path}/model of host 1; give one that all hosts share) on host 1."
    )


def test_many_hosts_are_counted_not_all_listed():
    text = difference([{"k": int(i == 7)} for i in range(1000)])
    assert text == "k is 0 on hosts 0, 1, 2, 3, 4, 5, 6, 8 and 991 more and 1 on host 7."


def test_a_fact_missing_on_some_hosts_is_a_difference():
    assert difference([{"seed": 1}, {"seed": 1, "num_records": 7}]) == (
        "num_records is not there on host 0 and 7 on host 1."
    )
    assert difference([{"seed": 1}, {"seed": 1}]) == ""


def test_the_facts_include_everything_that_determines_the_program(dense_task, vector_input, config):
    job = Job(
        dense_task,
        config(seed=5),
        Placement.of(jax.devices(), {"model": 2}, rules=partition_rules(["a=None,model"])),
    )
    facts = facts_of(job, [job.open("train", vector_input)], 10, 20)
    assert {"workdir"} & facts.keys() == set()
    assert (facts["seed"], facts["start step"], facts["end step"], facts["mode"]) == (
        5,
        10,
        20,
        "train",
    )
    assert (facts["fingerprint"], facts["num_records"], facts["global batch"]) == (
        "array100",
        100,
        16,
    )
    assert facts["mesh"] == "{'data': 2, 'fsdp': 1, 'model': 2}, devices [0, 1, 2, 3]"
    assert facts["the batch's x"] == "float32 [8] per row"
    assert facts["the input's position"] == 0
    assert len(str(facts)) < 2000  # a thousand hosts send them to host 0


def test_the_facts_reveal_a_different_model_optimizer_or_mesh(
    dense_task, vector_input, vectors, make_input, config
):
    def facts(task=dense_task, devices=None, input_fn=vector_input, **rules):
        job = Job(task, config(), Placement.of(devices, {"model": 2} if rules else {}, **rules))
        return facts_of(job, [job.open("train", input_fn)], 0, 1)

    narrow = {key: array[:, :5] if array.ndim > 1 else array for key, array in vectors.items()}
    assert difference([facts(), facts()]) == ""
    interleaved = np.array(jax.devices())[[0, 2, 1, 3]].tolist()
    assert difference([facts(), facts(devices=interleaved)]).startswith(
        "mesh is {'data': 4, 'fsdp': 1, 'model': 1}, dev"
    )
    assert difference([facts(), facts(input_fn=lambda ctx: make_input(narrow, ctx))]) == (
        "the batch's x is float32 [8] per row on host 0 and float32 [5] per row on host 1."
    )
    with_average = replace(dense_task, optimizer=optax.sgd(0.1, momentum=0.9))
    sharded = [facts(rules=partition_rules([rule])) for rule in ("a=None,model", "a=model,None")]
    for differing in ([facts(), facts(with_average)], sharded):
        model = r"\d+ arrays with checksum \w{8}"
        assert re.match(
            f"model and optimizer is {model} on host 0 and {model} on host 1", difference(differing)
        )


def test_a_single_process_compares_nothing(tmp_path):
    (alone,) = exchanges_of(1)
    agree(alone, lambda: pytest.fail("facts were gathered"), str(tmp_path), "", 1.0)
