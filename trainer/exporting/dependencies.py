"""Which inputs each output of a traced function depends on, as far as its jaxpr shows."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

__all__ = ["dependencies"]

Places = frozenset[int]
NONE: Places = frozenset()

# Calls whose operands and results are those of the function that they call, one by one. Any other operation, loops
# included, is taken to compute all results from all operands.
CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "checkpoint",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)


def dependencies(closed: ClosedJaxpr) -> list[Places]:
    """For each output, the numbers of the inputs that it may depend on."""
    return _through(closed.jaxpr, [frozenset([place]) for place in range(len(closed.jaxpr.invars))])


def _through(jaxpr: Any, given: Sequence[Places]) -> list[Places]:
    known: dict[Any, Places] = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> Places:
        return NONE if isinstance(atom, Literal) else known.get(atom, NONE)

    for equation in jaxpr.eqns:
        operands = [of(atom) for atom in equation.invars]
        called = _called(equation)
        if called is None:
            everything = NONE.union(*operands)
            made = [everything] * len(equation.outvars)
        else:
            made = _through(called, operands)
        known.update(zip(equation.outvars, made, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _called(equation: Any) -> Any:
    if equation.primitive.name not in CALLS:
        return None
    for value in equation.params.values():
        jaxpr = getattr(value, "jaxpr", value)
        if len(getattr(jaxpr, "invars", ())) == len(equation.invars) and len(jaxpr.outvars) == len(equation.outvars):
            return jaxpr
    return None
