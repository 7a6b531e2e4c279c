"""A model trains alike on one device, and split over eight in any way; its checkpoints move between all of them."""

import pytest

pytestmark = pytest.mark.slow

STEPS, MIDDLE = 12, 6
MODEL = ["layers/up=None,None,model", "layers/down=None,model"]
BOTH = ["layers/up=None,fsdp,model", "layers/down=None,model,fsdp"]
LAYOUTS = {
    "one device": (1, {}),
    "data=8": (8, {}),
    "fsdp=8": (8, {"mesh": "fsdp=8"}),
    "model=2": (8, {"mesh": "model=2", "partition": MODEL}),
    "model=2,fsdp=4": (8, {"mesh": "fsdp=4,model=2", "partition": BOTH}),
}
ALIKE = ["one device", "fsdp=8", "model=2", "model=2,fsdp=4"]
FEATURES = {"sgd": {}, "adam": {"on_nan": "skip", "accumulate": 2, "ema_decay": 0.9}}
CHAIN = ["data=8", "fsdp=8", "model=2,fsdp=4", "one device"]  # then two processes, then one with fsdp=8
STEPS_EACH = 2


@pytest.fixture(scope="module")
def runs(run_hosts, tmp_path_factory):
    """{name: report of each process}."""
    work = tmp_path_factory.mktemp("meshes")

    def run(optimizer, layout, steps, workdir, evaluates=False, **others):
        devices, mesh = LAYOUTS[layout]
        others = FEATURES.get(optimizer, {}) | mesh | others | {"workdir": str(work / workdir)}
        return optimizer, devices, steps, evaluates, others

    def ran(count, **runs):
        ended = run_hosts("meshes", count, 8 // count, runs=runs, host_timeout_seconds=60)
        assert [process.code for process in ended] == [0] * count, "\n".join(process.printed for process in ended)
        return {name: [process.report[name] for process in ended] for name in runs}

    alone = {
        (name := f"{optimizer}, {layout}"): run(optimizer, layout, STEPS, name, name == "adam, one device")
        for optimizer in FEATURES
        for layout in ALIKE
    }
    for name in ("fsdp=8", "model=2,fsdp=4"):
        alone[f"adam, {name}"][-1]["checkpoint_every_steps"] = MIDDLE
        alone[f"resumed, {name}"] = run("adam", name, STEPS, f"adam, {name}", restore_step=MIDDLE)
    alone["adafactor"] = run("adafactor", "fsdp=8", 2, "adafactor")
    for number, layout in enumerate(CHAIN, 1):
        alone[f"moved, {layout}"] = run("adam", layout, STEPS_EACH * number, "moved")
    seen = ran(1, **alone)
    seen |= ran(2, hosts=run("adam", "model=2,fsdp=4", STEPS_EACH * 5, "moved"))
    return seen | ran(1, end=run("adam", "fsdp=8", STEPS, "moved", evaluates=True))


@pytest.mark.parametrize("layout", ALIKE[1:])
@pytest.mark.parametrize(("optimizer", "within"), [("sgd", 1e-6), ("adam", 1e-5)])
def test_the_losses_are_those_of_one_device(runs, optimizer, within, layout):
    expected, found = (runs[f"{optimizer}, {name}"][0]["losses"] for name in ("one device", layout))
    assert len(found) == STEPS
    assert expected[-1] < 0.9 * expected[0]
    assert found == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("name", ["adam, fsdp=8", "adam, model=2,fsdp=4", "adafactor"])
def test_each_device_stores_an_eighth_of_the_large_arrays(runs, name):
    for part, (on_device, total) in runs[name][0]["bytes"].items():
        assert on_device * 8 == total, part
        assert total or (part, name) == ("ema", "adafactor")


@pytest.mark.parametrize("layout", ["fsdp=8", "model=2,fsdp=4"])
def test_a_resumed_training_ends_with_the_same_bits(runs, layout):
    straight, resumed = runs[f"adam, {layout}"][0], runs[f"resumed, {layout}"][0]
    assert resumed["start"] == MIDDLE
    assert resumed["losses"] == straight["losses"][MIDDLE:]
    assert resumed["bits"] == straight["bits"]


def test_a_checkpoint_moves_between_meshes_and_numbers_of_processes(runs):
    legs = [runs[f"moved, {layout}"] for layout in CHAIN] + [runs["hosts"], runs["end"]]
    assert [leg[0]["start"] for leg in legs] == [STEPS_EACH * number for number in range(6)]
    assert runs["hosts"][0]["losses"] == runs["hosts"][1]["losses"]
    losses = [loss for leg in legs for loss in leg[0]["losses"]]
    assert losses == pytest.approx(runs["adam, one device"][0]["losses"], rel=1e-5)


def test_an_evaluation_and_an_export_from_fsdp_are_those_of_one_device(runs):
    (one,), (end,) = runs["adam, one device"], runs["end"]
    assert (end["proven"], end["records"]) == (True, 40)
    assert end["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
    assert max(end["exported"], one["exported"]) <= 1e-5
