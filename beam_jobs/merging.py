"""Whether new splits may join those in a manifest: they share its schema, its labels and the files beside it."""

from collections.abc import Sequence

from beam_jobs.conversion_job import ConversionJob
from beam_jobs.converter import Packer
from pipeline.errors import ConversionError
from pipeline.shards.manifest import Manifest
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join


def check_mergeable(there: Manifest | None, job: ConversionJob) -> None:
    """Raises ConversionError if splits that remain in the manifest have another name, schema, labels or files."""
    stay = sorted(set(there.splits) - set(job.splits)) if there else ()
    if there is None or not stay:
        return
    converter = job.converter
    if (there.name, there.schema, there.labels) != (converter.name, converter.schema, converter.labels):
        raise ConversionError(
            f"{job.output_dir} holds {', '.join(stay)} of dataset {there.name!r}, schema {there.schema.name!r}; its "
            f"features or labels are not those of {converter.name!r}, schema {converter.schema.name!r}. Give another "
            "directory, or convert all splits again with --overwrite."
        )
    if others := _other_files(job):
        raise ConversionError(
            f"{', '.join(stay)} of {job.output_dir} was converted with other options: {others[0]} is not what these "
            "would write. Repeat the old options, give another directory, or convert all splits again with --overwrite."
        )


def _other_files(job: ConversionJob) -> Sequence[str]:
    """The files of a Packer that are there with other content."""
    files = job.converter.files() if isinstance(job.converter, Packer) else {}
    storage = open_storage(job.output_dir)
    paths = {name: join(job.output_dir, name) for name in files}
    return [path for name, path in paths.items() if storage.exists(path) and storage.read(path) != files[name]]
