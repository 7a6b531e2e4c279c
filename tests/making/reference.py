"""The API reference: which modules are public, what of them lacks documentation, and the pages that pdoc makes of them.

    python tests/making/reference.py DIRECTORY

In a public module, `__all__` lists the public names. Everything else may change in any version."""

import importlib
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pdoc
import pdoc.doc

MODULES = (
    "infeed",
    "infeed.metrics",
    "pipeline.datasets",
    "pipeline.epoch",
    "pipeline.tf_data",
    "pipeline.grain",
    "pipeline.ops",
    "pipeline.tensorflow_op",
    "pipeline.formats",
    "pipeline.hosts",
    "pipeline.description",  # what recipes and sources of one's own may state
    "pipeline.tokenizers",
    "pipeline.errors",
    "pipeline.sources.records",  # the protocol of one's own source
    "trainer.trainer",
    "trainer.task",
    "trainer.nnx_task",
    "trainer.config",
    "trainer.inputs",
    "trainer.results",
    "trainer.callbacks",
    "trainer.augment",
    "trainer.optimizers.config",
    "trainer.optimizers.build",
    "trainer.models.transformer",
    "trainer.models.resnet",
    "trainer.metrics.classes",
    "trainer.metrics.binary",
    "trainer.metrics.means",
    "trainer.metrics.tokens",
    "trainer.checkpoints",
    "trainer.checkpointing.mappings",
    "trainer.recipe",
    "trainer.recipes.tiny",  # for --tiny of one's own recipe
    "beam_jobs.converter",  # the protocol of one's own converter, and what it returns
    "pipeline.shards.schema",  # what a converter declares
)


def main(directory: str) -> None:
    """Builds the pages. A warning of pdoc's is an error."""
    for name in MODULES:
        importlib.import_module(name)  # before the filter: libraries may warn when imported
    warnings.simplefilter("error")
    to_html = pdoc.render.env.filters["to_html"]
    # Markdown takes the <workdir> of <workdir>/metrics.jsonl for HTML, and a browser shows nothing of it.
    # It has the fields of a class with their own docstrings.
    pdoc.render.env.filters["to_html"] = lambda text: to_html(
        re.sub(r"<(\w+)>", r"&lt;\1>", text.partition("\n\nAttributes:\n")[0])
    )
    # with a package come its modules
    pages = [name for name in MODULES if name.rpartition(".")[0] not in MODULES]
    pdoc.pdoc(*pages, output_directory=Path(directory))


def undocumented(module: Any) -> list[str]:
    """The public names of a module without documentation, its own name among them.

    A class, function, method or property has a docstring, its own or an inherited one. So has a constant or a field,
    unless the docstring of its module or class names it."""
    page = pdoc.doc.Module(module)
    return [member.fullname for member in [page, *_public(page)] if not _documented(member)]


def _public(namespace: Any) -> Iterator[Any]:
    for name, member in namespace.members.items():
        ours = member.taken_from[0].partition(".")[0] != "builtins" or not isinstance(
            namespace, pdoc.doc.Class
        )
        if not name.startswith("_") and ours:
            member.within = namespace
            yield member
            if isinstance(member, pdoc.doc.Class):
                yield from _public(member)


def _documented(member: Any) -> bool:
    if member.docstring or not isinstance(member, pdoc.doc.Variable):
        return bool(member.docstring)
    return bool(re.search(rf"\b{member.name}\b", _docstrings(member.within)))


def _docstrings(namespace: Any) -> str:
    bases = namespace.obj.__mro__ if isinstance(namespace, pdoc.doc.Class) else [namespace.obj]
    return "\n".join(each.__doc__ or "" for each in bases)


if __name__ == "__main__":
    main(*sys.argv[1:])
