"""Errors of workers without a verdict: runners return them only as text, inside quoted tracebacks."""

import traceback

import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs import stages
from beam_jobs.split.commit import buried_messages
from converters import idx_to_gcs
from pipeline import errors
from pipeline.errors import ConversionError, InfeedError, StorageError


class QuotesTracebacks(FnApiRunner):
    """Raises what a runner with other processes does: the text of the worker's traceback, as a RuntimeError."""

    def run_pipeline(self, pipeline, options):
        try:
            return super().run_pipeline(pipeline, options)
        except Exception:
            raise RuntimeError(
                f"Error processing instruction 3. Original traceback is\n{traceback.format_exc()}"
            ) from None


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, InfeedError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_each_of_our_errors_is_found_in_the_text_of_a_traceback(kind):
    try:
        raise kind("a.tar is gone. Copy it again. [while running 'scan']")
    except InfeedError:
        text = f"Error processing instruction 3. Original traceback is\n{traceback.format_exc()}\nand a log"
    assert buried_messages(text) == ["a.tar is gone. Copy it again."]


@pytest.mark.parametrize("runner", ["local", f"{__name__}.QuotesTracebacks"])
def test_a_worker_that_can_write_no_verdict_still_names_its_error(
    raw_mnist, tmp_path, monkeypatch, runner
):
    def full(*_args):
        raise StorageError("cannot write shard: No space left on device")

    raw_mnist.write()
    flags = [f"--raw-data-dir={raw_mnist.directory}", f"--gcs-output-path={tmp_path}/out"]
    monkeypatch.setattr(stages, "write_shard", full)
    monkeypatch.setattr("beam_jobs.split.commit.Verdict.write", full)
    with pytest.raises(ConversionError) as raised:
        idx_to_gcs.main([*flags, f"--runner={runner}"])
    assert str(raised.value) == "cannot write shard: No space left on device"


def test_ctrl_c_in_a_local_worker_raises_without_waiting_for_a_verdict(
    raw_mnist, tmp_path, monkeypatch
):
    def interrupted(*_args):
        raise KeyboardInterrupt

    raw_mnist.write()
    monkeypatch.setattr(stages, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        idx_to_gcs.main(
            [f"--raw-data-dir={raw_mnist.directory}", f"--gcs-output-path={tmp_path}/out"]
        )
