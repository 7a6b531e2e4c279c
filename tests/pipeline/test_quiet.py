import logging
import os
import subprocess
import sys

from pipeline.logs import quiet_libraries


def test_libraries_and_children_are_not_heard_and_python_is(capfd):
    with quiet_libraries():
        os.write(2, b"a library\n")
        subprocess.run([sys.executable, "-c", "import sys; print('a child', file=sys.stderr)"], check=True)
        print("why the process ends", file=sys.stderr)
    print("behind", file=sys.stderr)
    assert capfd.readouterr().err == "why the process ends\nbehind\n"


def test_a_logger_that_a_library_makes_as_it_loads_speaks_afterwards(capfd):
    with quiet_libraries():
        handler = logging.StreamHandler()  # takes sys.stderr as it is now
    handler.handle(logging.makeLogRecord({"msg": "a warning"}))
    assert capfd.readouterr().err == "a warning\n"
