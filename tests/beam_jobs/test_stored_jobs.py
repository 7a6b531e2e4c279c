"""How jobs reach their workers: what the graph of a job takes, and the file of a job that is not small."""

import time

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.dask.dask_runner import DaskOptions
from apache_beam.runners.dask.overrides import dask_overrides
from stages import Stages

from beam_jobs import graph, stages, stored_job
from beam_jobs.converter import ConversionJob, Source
from beam_jobs.graph import Flow
from beam_jobs.runners import dask_runner
from converters import table_to_gcs
from converters.table.row_converter import RowConverter
from pipeline.errors import ConversionError, StorageError
from pipeline.shards.manifest import read_manifest
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Stat


@pytest.fixture
def every_job_is_large(monkeypatch):
    monkeypatch.setattr(stored_job, "_SMALL_BYTES", 0)


def files_of(out):
    return [path.name for path in out.glob("_scratch/job.*")]


@pytest.mark.parametrize("num_sources", [10, 20_000])
def test_the_graph_of_a_job_takes_less_than_a_megabyte(tmp_path, num_sources):
    sources = tuple(
        Source("train", f"gs://bucket/table-{i:06}.csv", Stat(10**6 + i, i * 7919), 0, 10**6 + i)
        for i in range(num_sources)
    )
    job = ConversionJob(RowConverter(()), sources, str(tmp_path))
    pipeline = graph.pipeline_of(job, PipelineOptions(runner="DirectRunner"))
    assert pipeline.to_runner_api().ByteSize() < 10**6
    assert len(files_of(tmp_path)) == (num_sources > 10)


@pytest.mark.usefixtures("without_beam")
def test_the_work_for_a_source_does_not_grow_with_the_number_of_sources(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(Source, "guessed_bytes", property(lambda each: looks.append(each) or 10**6))
    (tmp_path / "raw").mkdir()
    for number in range(30):
        (tmp_path / f"raw/train-{number}.csv").write_text(f"a\n{number}\n")
    table_to_gcs.main([f"--raw-data-dir={tmp_path}/raw", f"--output={tmp_path}/out"])
    assert len(looks) < 5 * 30


@pytest.mark.parametrize("flag", ["--dask_partition_size=1", "--dask_npartitions=8"])
def test_on_dask_more_than_one_worker_scans(tmp_path, flag, monkeypatch):
    sources = tuple(Source("train", f"{i}.csv", Stat(5), 0, 5) for i in range(12))
    options = PipelineOptions([flag])
    pipeline = graph.pipeline_of(ConversionJob(RowConverter(()), sources, str(tmp_path)), options)
    chain = dask_runner._Chain(options.view_as(DaskOptions))
    monkeypatch.setattr(dask_runner._Chain, "_compute_inputs", lambda *_: None)
    pipeline.replace_all(dask_overrides())
    pipeline.visit(chain)
    of_scan = [bag for step, bag in chain.bags.items() if step and step.full_label == "scan"]
    assert [bag.npartitions >= 6 for bag in of_scan] == [True]


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
        done = []

        class Watched(Flow):
            def each(self, stage, *given):
                if stage.__name__ == moment and not done:
                    done.append(moment)
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
        (path,) = out.glob("_scratch/job.*")
        change(path)
        stored_job._job.cache_clear()  # as in a new worker

    with pytest.raises(ConversionError, match=rf"_scratch/job\.\S+, .* is {state}\. "):
        conversion("scan", spoil)
    conversion("", None)
    assert not files_of(tmp_path / "out")


def test_files_that_killed_conversions_left_are_removed_after_a_week(conversion, tmp_path):
    (tmp_path / "out/_scratch").mkdir(parents=True)
    now = int(time.time())
    names = [f"job.{now - days * 86_400}.{'0' * 32}" for days in (6, 8)]
    for name in names:
        (tmp_path / f"out/_scratch/{name}").touch()
    conversion("", None)
    assert files_of(tmp_path / "out") == names[:1]


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


def test_a_commit_is_not_skipped_where_another_removed_the_file(conversion, tmp_path):
    def spoil(out):
        (path,) = out.glob("_scratch/job.*")
        path.unlink()

    conversion("commit", spoil)  # whose process has read the job before
    assert {*read_manifest(str(tmp_path / "out")).splits} == {"train", "test"}


def test_a_joint_conversion_survives_one_of_a_single_split(conversion, raw_mnist, tmp_path):
    conversion("gather", lambda out: raw_mnist.convert(out, "--splits=test"))
    assert {*read_manifest(str(tmp_path / "out")).splits} == {"train", "test"}
    assert not files_of(tmp_path / "out")


@pytest.mark.parametrize("may_delete", [True, False])
def test_a_job_that_is_refused_says_why_and_leaves_no_file(
    conversion, raw_mnist, tmp_path, monkeypatch, may_delete
):
    def delete(self, path):
        raise StorageError(f"no permission to delete {path}")

    conversion("", None)
    if not may_delete:
        monkeypatch.setattr(LocalStorage, "delete", delete)
    with pytest.raises(ConversionError, match="another plan"):
        raw_mnist.convert(tmp_path / "out", "--seed=5")
    assert bool(files_of(tmp_path / "out")) != may_delete


def test_a_job_that_does_not_start_leaves_no_file(
    raw_mnist, tmp_path, monkeypatch, every_job_is_large
):
    class Refused(Stages):
        def run(self):
            raise ConversionError("the service refuses the job")

    raw_mnist.write()
    monkeypatch.setattr(graph, "pipeline_of", Refused)
    with pytest.raises(ConversionError, match="refuses"):
        raw_mnist.convert(tmp_path / "out")
    assert not files_of(tmp_path / "out")
