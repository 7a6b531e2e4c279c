"""--platform and --num_devices: in a process of its own, as JAX takes its devices once."""

import os
import subprocess
import sys

import pytest

from pipeline.errors import OptionError
from trainer.hosts.devices import Devices

pytestmark = pytest.mark.slow

PROGRAM = """
import jax
from trainer.hosts.devices import Devices
devices = Devices(platform=%r, num_devices=%r)
devices.choose()
devices.check()
print(jax.default_backend(), jax.device_count())
"""


def printed(platform, num_devices):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", PROGRAM % (platform, num_devices)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=clean, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_a_command_computes_on_as_many_devices_as_it_was_told():
    assert printed("cpu", 3) == (0, "cpu 3\n")


@pytest.mark.parametrize("platform", ["cuda", "gpu", "tpu"])
def test_a_platform_that_is_not_there_is_named_with_what_it_needs(platform):
    code, text = printed(platform, None)
    assert code == 1
    *_, line = text.splitlines()
    assert f"OptionError: platform={platform} is not available on this machine: " in line
    assert "Choose --platform cpu, or install what it needs: pip install -e '" in line


@pytest.mark.parametrize(("platform", "count"), [("cuda", 4), (None, 4), ("cpu", 0)])
def test_a_number_of_devices_is_for_the_cpu_alone(platform, count):
    text = f"num_devices={count} is given with platform={platform}. Only platform=cpu can simulate"
    with pytest.raises(OptionError, match=text):
        Devices(platform=platform, num_devices=count)
