"""Profiles of the requested steps alone."""

import logging
from collections import Counter
from pathlib import Path

import jax
import pytest
from jax.profiler import ProfileData

from pipeline.storage.gcs import GcsStorage
from trainer.config import TrainerConfig
from trainer.loop.profiler import Profile
from trainer.trainer import Trainer


def seen(path):
    """The steps after which the traced dispatches began, and how often each operation ran on the device."""
    profile = ProfileData.from_file(str(path))
    events = [event for plane in profile.planes for line in plane.lines for event in line.events]
    begun = sorted(dict(event.stats)["step_num"] for event in events if event.name == "dispatch")
    return begun, Counter(event.name for event in events if event.name.startswith("end: "))


# As an error, this warning of JAX 0.12's ProfileData on Python 3.13 would abort the process.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
def test_the_trace_has_the_dispatches_of_its_steps_alone(dense_task, vector_input, config, caplog):
    settings = config(
        iterations_per_loop=4, checkpoint_every_steps=None, profile_steps="9:18", loop_mode="step"
    )
    with caplog.at_level(logging.INFO, "trainer"):
        Trainer(dense_task, settings, jax.devices()[:1]).train(vector_input, steps=24)
    directory = f"{settings.workdir}/profile"
    assert (
        f"the profile of steps 9:18 is in {directory}. To look at it, in a new environment: pip"
        in caplog.text
    )
    assert f"&& tensorboard --logdir {directory}" in caplog.text
    (path,) = Path(settings.workdir).glob("profile/plugins/profile/*/*.xplane.pb")
    begun, operations = seen(path)
    assert begun == [9, 13, 17]
    assert {count % 9 for count in operations.values()} == {0}


@pytest.mark.parametrize(
    ("start", "end", "stops"), [(0, 30, {10, 20}), (15, 17, {15, 17}), (20, 30, set())]
)
def test_a_run_profiles_only_the_requested_steps_that_it_trains(start, end, stops, caplog):
    settings = TrainerConfig(workdir="w", global_batch_size=1, profile_steps="10:20")
    assert Profile(settings, start, end).stops == stops
    assert ("profile_steps=10:20: this run trains only steps 21 to 30" in caplog.text) == (
        not stops
    )


def test_a_trace_cut_short_by_the_end_of_a_run_is_uploaded(bucket):
    with Profile(
        TrainerConfig(workdir=bucket, global_batch_size=1, profile_steps="0:5"), 0, 9
    ) as profile:
        profile.at(0)
        profile.at(3)
    directory = f"{bucket}/profile/plugins/profile"
    _, (time,) = GcsStorage().entries(directory)
    (name,) = (
        name for name in GcsStorage().list(f"{directory}/{time}") if name.endswith(".xplane.pb")
    )
    assert list(
        ProfileData.from_serialized_xspace(GcsStorage().read(f"{directory}/{time}/{name}")).planes
    )
