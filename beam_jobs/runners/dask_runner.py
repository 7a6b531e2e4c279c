"""Beam's DaskRunner for a linear chain with side inputs, such as a conversion; not for other
graphs.

Beam's own DaskRunner recomputes a side input, with everything it depends on, in every partition
that reads it: a job of ten sources scanned them 20 to 40 times. It also never makes more partitions
than there are sources. Requires the client that `beam_jobs.runners.dask_cluster` connects."""

from typing import Any

from apache_beam import Pipeline
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.dask.dask_runner import DaskOptions, DaskRunner, DaskRunnerResult
from apache_beam.runners.dask.overrides import _GroupByKeyOnly, dask_overrides
from dask.bag import Bag
from dask.base import optimize, persist
from distributed import default_client


class ChainRunner(DaskRunner):
    """Runs the last step of a graph and everything it depends on, each step once."""

    def run_pipeline(self, pipeline: Pipeline, options: Any) -> DaskRunnerResult:
        """Computes side inputs, then starts the other steps without waiting for them."""
        client = default_client()
        chain = _Chain(options.view_as(DaskOptions))
        pipeline.replace_all(dask_overrides())
        pipeline.visit(chain)
        (last,) = optimize(list(chain.bags.values())[-1])
        return DaskRunnerResult(client, [client.compute(last)])


class _Chain(PipelineVisitor):
    """Translates steps into bags with Beam's own visitor. bags: by the step that produces them."""

    def __init__(self, options: DaskOptions) -> None:
        self._npartitions = options.npartitions or 0
        sizes = {"npartitions": options.npartitions, "partition_size": options.partition_size}
        self._translation: Any = DaskRunner.to_dask_bag_visitor(sizes)
        self.bags: dict[AppliedPTransform | None, Any] = self._translation.bags

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        """Adds the bag of a step."""
        if transform_node.side_inputs:
            self._compute_inputs(transform_node)
        if isinstance(transform_node.transform, _GroupByKeyOnly):
            # A grouping keeps the number of partitions, so few sources would mean few of them from
            # here on.
            ungrouped = transform_node.inputs[0].producer
            if self.bags[ungrouped].npartitions < self._npartitions:
                self.bags[ungrouped] = self.bags[ungrouped].repartition(
                    npartitions=self._npartitions
                )
        self._translation.visit_transform(transform_node)

    def _compute_inputs(self, step: AppliedPTransform) -> None:
        """Computes a step's side inputs together with its main input, so that shared steps run
        once.

        A list replaces the bag of each side input: Beam's translation passes any iterable to the
        workers."""
        sides = [side.pvalue.producer for side in step.side_inputs]
        bags = [side for side in sides if isinstance(self.bags[side], Bag)]
        if not bags:
            return
        main = step.inputs[0].producer
        persisted = persist(self.bags[main], *(self.bags[side] for side in bags))
        self.bags[main] = persisted[0]
        for side, bag in zip(bags, persisted[1:], strict=True):
            self.bags[side] = bag.compute()
