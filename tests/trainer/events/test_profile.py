"""Profiles: of the requested steps alone, and captures that TensorBoard asks for while a training runs."""

import itertools
import logging
import socket
import threading
from collections import Counter
from pathlib import Path

import grpc
import jax
import pytest
from google.protobuf.wrappers_pb2 import UInt64Value
from jax.profiler import ProfileData

from pipeline.errors import OptionError
from pipeline.storage.gcs import GcsStorage
from trainer.callbacks import Callback
from trainer.config import TrainerConfig
from trainer.events import profile
from trainer.events.profile import Profile
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
    settings = config(iterations_per_loop=4, checkpoint_every_steps=None, profile_steps="9:18", loop_mode="step")
    with caplog.at_level(logging.INFO, "trainer"):
        Trainer(dense_task, settings, jax.devices()[:1]).train(vector_input, steps=24)
    directory = f"{settings.workdir}/profile"
    assert f"the profile of steps 9:18 is in {directory}. To look at it, in a new environment: pip" in caplog.text
    assert f"&& tensorboard --logdir {directory}" in caplog.text
    (path,) = Path(settings.workdir).glob("profile/plugins/profile/*/*.xplane.pb")
    begun, operations = seen(path)
    assert begun == [9, 13, 17]
    assert {count % 9 for count in operations.values()} == {0}


@pytest.mark.parametrize(("start", "end", "stops"), [(0, 30, {10, 20}), (15, 17, {15, 17}), (20, 30, set())])
def test_a_run_profiles_only_the_requested_steps_that_it_trains(start, end, stops, caplog):
    settings = TrainerConfig(workdir="w", global_batch_size=1, profile_steps="10:20")
    assert Profile(settings, start, end).stops == stops
    assert ("profile_steps=10:20: this run trains only steps 21 to 30" in caplog.text) == (not stops)


def test_a_trace_cut_short_by_the_end_of_a_run_is_uploaded(bucket):
    with Profile(TrainerConfig(workdir=bucket, global_batch_size=1, profile_steps="0:5"), 0, 9) as profile:
        profile.at(0)
        profile.at(3)
    directory = f"{bucket}/profile/plugins/profile"
    _, (time,) = GcsStorage().entries(directory)
    (name,) = (name for name in GcsStorage().list(f"{directory}/{time}") if name.endswith(".xplane.pb"))
    assert list(ProfileData.from_serialized_xspace(GcsStorage().read(f"{directory}/{time}/{name}")).planes)


class During(Callback):
    """Calls `visit` in a thread while the training runs, and ends the training afterwards."""

    def __init__(self, visit):
        self._thread = threading.Thread(target=visit)

    def on_loop_end(self, end):
        if self._thread.ident is None:
            self._thread.start()
        elif not self._thread.is_alive():
            end.stop("the visit is over")


@pytest.fixture
def endless(vectors):
    return lambda ctx: itertools.repeat({key: array[:16] for key, array in vectors.items()})


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def answers(*address):
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("host", "others"), [({}, False), ({"profiler_host": "0.0.0.0"}, True)])
def test_the_profiler_port_is_local_by_default_and_open_only_during_training(
    dense_task, endless, config, port, host, others
):
    heard = []
    visit = During(lambda: heard.extend(answers(address, port) for address in ("127.0.0.1", "127.0.0.2")))
    settings = config(iterations_per_loop=4, profiler_port=port, **host)
    Trainer(dense_task, settings, callbacks=[visit]).train(endless)
    assert heard == [True, others]  # 127.0.0.2 is another address of this machine
    assert not answers("127.0.0.1", port)


def test_a_port_that_is_in_use_is_one_error(dense_task, endless, config, port):
    with socket.create_server(("127.0.0.1", port), reuse_port=True):  # as other servers of gRPC listen
        text = rf"profiler_port: cannot listen on 127\.0\.0\.1:{port}; is the port in use\? Give another"
        with pytest.raises(OptionError, match=text):
            Trainer(dense_task, config(profiler_port=port)).train(endless, max_steps=1)


@pytest.mark.slow
def test_a_running_capture_does_not_delay_the_end_of_training(dense_task, endless, config, port):
    class Asks(Callback):
        def on_loop_end(self, end):
            if not calls:
                call = channel.unary_unary("/tensorflow.ProfilerService/Profile")
                calls.append(call.future(UInt64Value(value=10**8).SerializeToString()))
            elif end.step > 400:
                end.stop("a second or so later")

    calls = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        settings = config(iterations_per_loop=4, profiler_port=port)
        Trainer(dense_task, settings, callbacks=[Asks()]).train(endless)
        assert calls[0].exception(timeout=20) is not None


@pytest.mark.slow
def test_a_capture_is_limited_in_time_whatever_the_client_requests(dense_task, endless, config, port, monkeypatch):
    monkeypatch.setattr(profile, "LONGEST_CAPTURE_SECONDS", 0.2)
    answers = []

    def ask():
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1)]) as channel:
            call = channel.unary_unary("/tensorflow.ProfilerService/Profile")
            answers.append(call(UInt64Value(value=10**8).SerializeToString(), timeout=60))

    settings = config(iterations_per_loop=4, profiler_port=port)
    assert Trainer(dense_task, settings, callbacks=[During(ask)]).train(endless).stopped == "the visit is over"
    assert b"xplane.pb" in answers[0]
