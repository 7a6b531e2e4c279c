"""How jobs reach their workers: what the graph of a job takes, and the file of a job that is not small."""

import dataclasses

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from stages import Stages

from beam_jobs import graph, stages, stored_job
from beam_jobs.converter import ConversionJob, Source
from beam_jobs.graph import Flow
from converters.table.row_converter import RowConverter
from pipeline.errors import ConversionError
from pipeline.storage.storage import Stat


@pytest.fixture
def every_job_is_large(monkeypatch):
    monkeypatch.setattr(stored_job, "_SMALL_BYTES", 0)


def files_of(out):
    return [path.name for path in out.glob("_scratch/*-job")]


@pytest.mark.parametrize("num_sources", [10, 100_000])
def test_the_graph_of_a_job_takes_less_than_a_megabyte(tmp_path, num_sources):
    sources = tuple(
        Source("train", f"gs://bucket/table-{i:06}.csv", Stat(10**6 + i, i * 7919), 0, 10**6 + i)
        for i in range(num_sources)
    )
    job = ConversionJob(RowConverter(()), sources, str(tmp_path))
    pipeline = graph.pipeline_of(job, PipelineOptions(runner="DirectRunner"))
    assert pipeline.to_runner_api().ByteSize() < 10**6
    assert len(files_of(tmp_path)) == (num_sources > 10)


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_read_a_large_job_and_the_commit_removes_its_file(
    raw_mnist, tmp_path, shard_digests, every_job_is_large, processes
):
    raw_mnist.write()
    raw_mnist.convert(tmp_path / "out", f"--local-processes={processes}")
    assert not files_of(tmp_path / "out")
    stored_job._SMALL_BYTES = 1 << 20
    raw_mnist.convert(tmp_path / "small")
    assert shard_digests(tmp_path / "out") == shard_digests(tmp_path / "small")


@pytest.fixture
def conversion(raw_mnist, tmp_path, monkeypatch, every_job_is_large):
    """conversion(stage, before): converts a large job, and calls before(out) ahead of a stage."""
    raw_mnist.write()

    def convert(moment, before):
        class Watched(Flow):
            def each(self, stage, *given):
                if stage.__name__ == moment:
                    before(tmp_path / "out")
                return super().each(stage, *given)

        monkeypatch.setattr(Stages, "flow", Watched)
        monkeypatch.setattr(graph, "pipeline_of", Stages)
        raw_mnist.convert(tmp_path / "out")

    return convert


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(path.read_bytes()[::-1]), "damaged"),
    ],
)
def test_a_file_of_a_job_that_is_not_as_it_was_written_is_named(
    conversion, tmp_path, change, state
):
    def spoil(out):
        (path,) = out.glob("_scratch/*-job")
        change(path)
        stored_job._job.cache_clear()  # as in a new worker

    with pytest.raises(ConversionError, match=rf"_scratch/test\.\S+-job, .* is {state}\. "):
        conversion("scan", spoil)
    conversion("", None)
    assert not files_of(tmp_path / "out")


def test_of_a_killed_conversion_no_file_stays_once_another_has_ended(conversion, tmp_path):
    (tmp_path / "out/_scratch").mkdir(parents=True)
    (tmp_path / f"out/_scratch/train.{'0' * 32}-job").touch()
    (tmp_path / f"out/_scratch/validation.{'0' * 32}-job").touch()
    conversion("", None)
    assert files_of(tmp_path / "out") == [f"validation.{'0' * 32}-job"]


def test_a_commit_whose_answer_the_runner_lost_may_be_repeated(conversion, monkeypatch, tmp_path):
    commit = stages.commit

    def twice(*given):
        answers = [*commit(*given)]
        stored_job._job.cache_clear()
        assert [*commit(*given)] == []
        return answers

    monkeypatch.setattr(stages, "commit", twice)
    conversion("", None)
    assert (tmp_path / "out/manifest.json").exists()


def test_a_job_that_is_refused_leaves_no_file(conversion, raw_mnist, tmp_path):
    conversion("", None)
    with pytest.raises(ConversionError, match="another plan"):
        raw_mnist.convert(tmp_path / "out", "--seed=5")
    assert not files_of(tmp_path / "out")


def test_the_same_command_has_the_same_file_whichever_run_it_is(tmp_path):
    job = ConversionJob(RowConverter(()), (Source("train", "a.csv", Stat(3)),), str(tmp_path))
    again = dataclasses.replace(job, run_id="another", started=job.started + 1)
    one, other = map(stored_job.StoredJob.of, (job, again))
    assert (one.path, one.job.run_id, other.job.run_id) == (other.path, "", "another")
