"""A dataset that has no batch size yet."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from pipeline.errors import OptionError

NO_BATCH = (
    "this {} has no batch size. Give it one, such as global_batch=64, or give it to a Trainer, "
    "which has one."
)
D = TypeVar("D")
P = ParamSpec("P")


class Unbatched:
    """A dataset without a batch size: a Trainer calls it with its InputContext, which has that and
    the hosts' shares.

    The context also decides the seed and how records are read, unless that was given."""

    def __init__(
        self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        # TypeError for an unknown option, here rather than in the Trainer
        signature(make).bind(*args, **options)
        self._make = make
        self._args = args
        self._options = options

    def __repr__(self) -> str:
        return f"<{self._make.__name__} without a global_batch>"

    def __call__(self, ctx: Any) -> Any:
        """The batches of the context's host."""
        from_context = {
            "hosts": ctx.hosts,
            "seed": ctx.seed,
            "stall_seconds": ctx.stall_seconds,
            "workers": ctx.workers,
            **ctx.reading,
        }
        taken = {
            name: from_context[name]
            for name in from_context.keys() & signature(self._make).parameters
        }
        masks = {"on_error": "mask", "max_bad_records": ctx.max_masked} if ctx.max_masked else {}
        return self._make(
            *self._args, **taken | self._options | masks, global_batch=ctx.global_batch_size
        )

    def __iter__(self) -> NoReturn:
        raise OptionError(NO_BATCH.format(self._make.__name__))

    def __getattr__(
        self, name: str
    ) -> NoReturn:  # of a DatasetInput; copy and pickle ask for names with underscores
        raise AttributeError(
            name if name.startswith("_") else f"{name}: {NO_BATCH.format(self._make.__name__)}"
        )


def without_batch(make: Callable[P, D]) -> Callable[P, D]:
    """The function, which returns an Unbatched unless it is given a global_batch."""

    @wraps(make)
    def dataset(*args: P.args, **options: P.kwargs) -> D:
        if options.get("global_batch") is None:
            options.pop("global_batch", None)
            return cast(D, Unbatched(make, args, options))
        return make(*args, **options)

    return dataset
