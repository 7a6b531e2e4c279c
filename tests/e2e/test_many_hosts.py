"""One truth on any number of hosts, over any mesh: the same records, the same metrics, proven; also after a restart.

Four devices, as one process with four and two with two."""

import itertools

import numpy as np
import pytest

# Its runs, in the first test's setup, have a bound of their own: three times 240 s.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

STOP, STEPS = 8, 16  # multiples of the 4 steps per dispatch: one program fewer to compile
CUT = "model across the hosts"
LAYOUTS = {  # of two processes with two devices each: 0 and 1, 2 and 3
    "data": {"save_every": STOP},
    CUT: {"devices": [0, 2, 1, 3], "model": 2, "check_padding": True, "save_every": STOP},
}
RESUMED = ("2x2", "1x4 from a cut model")  # at step STOP
ALL = [*LAYOUTS, *RESUMED]
ROWS = 16  # as in host_worker.py
# devices in order; model axis
MESHES = [*itertools.product(([0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 3, 1]), (1, 2, 4))]


@pytest.fixture(scope="module")
def runs(run_hosts, digits, tmp_path_factory):
    """{name: [report of each process]}. Those of RESUMED continue from the checkpoints of the others."""
    work, data_dir = tmp_path_factory.mktemp("models"), str(digits[1])

    def ran(count, devices, layouts, meshes=()):
        layouts = {name: {"workdir": str(work / name)} | layout for name, layout in layouts.items()}
        if CUT in layouts:
            layouts[CUT]["exports"] = str(work / "exports")
        order = {"data_dir": data_dir, "meshes": meshes, "layouts": layouts, "max_steps": STEPS}
        ended = run_hosts("same_truth", count, devices, **order)
        assert [process.code for process in ended] == [0] * count, "\n".join(
            process.printed for process in ended
        )
        return {
            name: [process.report[name] for process in ended]
            for name in ["placed"] * bool(meshes) + [*layouts]
        }

    def resumed(source):
        return {"workdir": str(work / source), "restore_step": STOP}

    warm = {"init_from": str(work / "data"), "max_steps": 4}
    seen = ran(2, 2, LAYOUTS | {"2x2": resumed("data"), "warm": warm}, MESHES)
    alone = {"one host": {}, "one warm host": warm, "1x4 from a cut model": resumed(CUT)}
    return seen | ran(1, 4, alone)


def test_each_device_holds_its_rows_of_the_global_batch_on_any_mesh(runs):
    for number, (devices, model) in enumerate(MESHES):
        size = ROWS * model // len(devices)
        hosts, held = [host[number] for host in runs["placed"]], {}
        for host in hosts:
            assert host["shape"] == [ROWS]
            rows = [row for start, stop in host["rows"] for row in range(start, stop)]
            assert rows == sorted({row for part in host["parts"].values() for row in part})
            held |= {int(device): part for device, part in host["parts"].items()}
            assert host["last"] == {
                device: [part, [-row for row in part]] for device, part in host["parts"].items()
            }
        assert held == {
            device: [*range(at // model * size, (at // model + 1) * size)]
            for at, device in enumerate(devices)
        }


def test_a_host_that_delivers_half_of_its_rows_is_refused(runs):
    for host in runs["placed"]:
        assert [mesh["half"] for mesh in host] == ["refused"] * len(MESHES)


def global_batches(hosts, what):
    """[steps][row] -> record id, put together from the rows of all hosts; hosts that hold the same rows must agree."""
    # E3: every host makes the same number of steps
    assert len({len(host[what]) for host in hosts}) == 1
    steps = []
    for parts in zip(*(host[what] for host in hosts), strict=True):
        batch = {}
        for rows, ids, masks in parts:
            assert [float(i >= 0) for i in ids] == masks
            for row, record in zip(rows, ids, strict=True):
                assert batch.setdefault(row, record) == record
        assert sorted(batch) == list(range(len(batch)))
        steps.append([batch[row] for row in range(len(batch))])
    return steps


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_on_the_same_records(runs, name):
    expected = global_batches(runs["one host"], "trained")
    assert len(expected) == STEPS
    assert {len(batch) for batch in expected} == {32}
    assert global_batches(runs[name], "trained") == expected


@pytest.mark.parametrize("name", ["one host", *ALL])
def test_every_layout_evaluates_each_record_once_and_proves_it(runs, name):
    for host in runs[name]:
        assert (host["records"], host["proven"]) == (368, True)
    ids = [record for batch in global_batches(runs[name], "evaluated") for record in batch]
    assert ids == [*range(368), *[-1] * (-368 % 48)]


@pytest.mark.parametrize(
    ("name", "alone"), [*((name, "one host") for name in ALL), ("warm", "one warm host")]
)
def test_every_layout_has_the_same_metrics_and_parameters_within_1e_4(runs, name, alone):
    expected = runs[alone][0]
    for host in runs[name]:
        assert host["metrics"].keys() == expected["metrics"].keys()
        for near in ("loss", "perplexity"):
            assert host["metrics"][near] == pytest.approx(expected["metrics"][near], rel=1e-4)
        for exact in ("accuracy", "place", "area/roc", "area/average_precision"):
            assert host["metrics"][exact] == expected["metrics"][exact]
        assert host["confusion"] == expected["confusion"]
        assert host["last step"]["place"] == expected["last step"]["place"]
        for mine, theirs in zip(host["params"], expected["params"], strict=True):
            arrays = [np.frombuffer(bytes.fromhex(each), np.float32) for each in (mine, theirs)]
            assert arrays[0].size >= 320
            np.testing.assert_allclose(*arrays, atol=1e-4)


@pytest.mark.parametrize("name", RESUMED)
def test_a_restart_on_any_hosts_continues_with_the_very_next_records(runs, name):
    assert {host["start_step"] for host in runs[name]} == {STOP}
    straight = global_batches(runs["one host"], "trained")
    assert global_batches(runs[name], "trained") == straight[STOP:]


def test_only_host_0_calls_back_once_per_complete_checkpoint(runs):
    assert [host["complete"] for host in runs["data"]] == [[STOP, STEPS], []]
    assert [host["complete"] for host in runs["2x2"]] == [[STEPS], []]


def test_a_restart_on_the_same_mesh_ends_with_the_same_bits(runs):
    straight, resumed = runs["data"], runs["2x2"]
    assert [host["checksums"] for host in resumed] == [host["checksums"] for host in straight]
    assert resumed[0]["metrics"] == straight[0]["metrics"]


def test_a_warm_start_on_two_hosts_begins_where_the_other_training_ended(runs):
    warm, trained = runs["warm"][0], runs["data"][0]
    assert warm["start_step"] == 0
    # that of a fresh model is 2.3
    assert warm["metrics"]["loss"] < trained["metrics"]["loss"] + 0.2


def test_a_model_sharded_over_hosts_is_exported_once_and_completely(runs):
    # It was verified with what all hosts predict. No host went on before it was there.
    (export,) = runs[CUT][0]["exported"]
    assert [host["exported"] for host in runs[CUT]] == [[export]] * 2


def test_hosts_hold_different_parts_of_a_sharded_model(runs):
    # Each device's part is another one; a copy has the same checksum everywhere.
    assert runs[CUT][0]["checksums"] != runs[CUT][1]["checksums"]
    assert runs["data"][0]["checksums"] == runs["data"][1]["checksums"]
