"""python killed_text.py NUMBER FLAGS...: a conversion of small slices of text that kills itself before it publishes its
NUMBER-th file, in any of its processes; 0: never."""

import os
import signal
import sys

from beam_jobs.launch import exit_with
from converters import text_to_gcs
from converters.text import documents as layouts

SLICE_BYTES = 4000


def main(number, flags):
    published = 0

    def hook(event, args):
        nonlocal published
        if event == "os.rename":
            published += 1
            if published == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    layouts.SLICE_BYTES = SLICE_BYTES
    exit_with(lambda: text_to_gcs.main(flags))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
