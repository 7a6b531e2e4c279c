"""A conversion without Beam, for tests whose subject is a converter or the commit and not the runner."""

import contextlib
from unittest import mock

from beam_jobs import graph, stages, survey
from beam_jobs.graph import Flow
from beam_jobs.stored_job import StoredJob


class Stages:
    """In place of a Beam pipeline: runs the stages of a conversion one after the other, each by its own function."""

    def __init__(self, job, options):
        self.job, self.stored = job, StoredJob.of(job)
        self.chain = survey.looked if isinstance(job, survey.Survey) else stages.converted

    def run(self):
        self.chain(self.flow(range(self.job.num_elements)), self.stored)
        return self

    def wait_until_finish(self):
        pass

    flow = Flow


def without_beam() -> contextlib.AbstractContextManager[object]:
    """Conversions of this process in the block run without Beam: for the rerun whose first run is the subject."""
    return mock.patch.object(graph, "pipeline_of", Stages)
