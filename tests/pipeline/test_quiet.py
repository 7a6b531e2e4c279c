import logging
import os
import subprocess
import sys

from pipeline.logs import quiet_libraries


def test_quiet_libraries_silences_libraries_and_child_processes_but_not_python(capfd):
    with quiet_libraries():
        os.write(2, b"a library\n")
        subprocess.run([sys.executable, "-c", "import sys; print('a child', file=sys.stderr)"], check=True)
        print("why the process ends", file=sys.stderr)
    print("behind", file=sys.stderr)
    assert capfd.readouterr().err == "why the process ends\nbehind\n"


def test_a_log_handler_created_while_libraries_are_silenced_works_afterwards(capfd):
    with quiet_libraries():
        handler = logging.StreamHandler()  # takes sys.stderr as it is now
    handler.handle(logging.makeLogRecord({"msg": "a warning"}))
    assert capfd.readouterr().err == "a warning\n"
