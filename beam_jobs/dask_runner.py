"""Beam's DaskRunner for one linear chain with side inputs, which is what a conversion is; not for other graphs.

Beam's own computes a side input again in every partition that reads it, with all that it follows from: a job of ten
sources scanned them twenty to forty times. And it never makes more partitions than there are sources. Runs where
`dask_cluster` has connected a client."""

from typing import Any

from apache_beam import Pipeline
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.dask.dask_runner import DaskOptions, DaskRunner, DaskRunnerResult
from apache_beam.runners.dask.overrides import _GroupByKeyOnly, dask_overrides
from dask.bag import Bag
from dask.base import optimize, persist
from distributed import default_client

__all__ = ["ChainRunner"]


class ChainRunner(DaskRunner):
    """Runs the last step of a graph, and all that it follows from, each once."""

    def run_pipeline(self, pipeline: Pipeline, options: Any) -> DaskRunnerResult:
        """Computes side inputs, starts the rest, and does not wait for it."""
        client, chain = default_client(), _Chain(options.view_as(DaskOptions))
        pipeline.replace_all(dask_overrides())
        pipeline.visit(chain)
        (last,) = optimize(list(chain.bags.values())[-1])
        return DaskRunnerResult(client, [client.compute(last)])


class _Chain(PipelineVisitor):
    """Beam's translation of steps into bags, by the step that makes them."""

    def __init__(self, options: DaskOptions) -> None:
        self._npartitions = options.npartitions or 0
        sizes = {"npartitions": options.npartitions, "partition_size": options.partition_size}
        self._translation: Any = DaskRunner.to_dask_bag_visitor(sizes)
        self.bags: dict[AppliedPTransform | None, Any] = self._translation.bags

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        """Adds the bag of one step."""
        if transform_node.side_inputs:
            self._compute_inputs(transform_node)
        if isinstance(transform_node.transform, _GroupByKeyOnly):
            self._spread(transform_node)
        self._translation.visit_transform(transform_node)

    def _compute_inputs(self, step: AppliedPTransform) -> None:
        """Computes the side inputs of a step together with its main input, so that what they share runs once.

        A list takes the place of a side input's bag: Beam's translation hands to workers whatever can be iterated."""
        sides = [side.pvalue.producer for side in step.side_inputs]
        bags = [side for side in sides if isinstance(self.bags[side], Bag)]
        if not bags:
            return
        main = step.inputs[0].producer
        kept = persist(self.bags[main], *(self.bags[side] for side in bags))
        self.bags[main] = kept[0]
        for side, bag in zip(bags, kept[1:], strict=True):
            self.bags[side] = bag.compute()

    def _spread(self, step: AppliedPTransform) -> None:
        """Few sources would mean few partitions from here on, as a grouping keeps their number."""
        ungrouped = step.inputs[0].producer
        if self.bags[ungrouped].npartitions < self._npartitions:
            self.bags[ungrouped] = self.bags[ungrouped].repartition(npartitions=self._npartitions)
