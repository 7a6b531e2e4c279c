"""Which ops of an input can be exported."""

from collections.abc import Iterable, Sequence

from pipeline.decoding.op import Op
from pipeline.inputs.batch_decoder import Serving
from pipeline.ops import DecodeCentralCrop, DecodeJpeg, DecodePng, DecodeResize, Drop, Keep, Rename

IMAGE_OPS = (DecodeJpeg, DecodePng, DecodeCentralCrop, DecodeResize)  # graph_decoding computes what these compute
MOVING_OPS = (Keep, Drop, Rename)  # they never look at a value, so they take tensors as well as arrays


def has_method(op: Op) -> bool:
    """Whether the op itself computes with tensors: features of one record -> the features that it sets."""
    return callable(getattr(op, "tensorflow", None))


def ops_without_graph(serving: Serving) -> list[Op]:
    """The ops that an export cannot contain. A subclass may compute anything, so only the very types count; with
    `scaled`, pixels differ by more than rounding."""
    known = (*IMAGE_OPS, *MOVING_OPS)
    return [
        op for op in _ops(serving) if not has_method(op) and (type(op) not in known or getattr(op, "scaled", False))
    ]


def decodes_images(serving: Serving) -> bool:
    """Whether its pixels may differ by rounding: TensorFlow decodes and resizes images in an export."""
    return any(type(op) in IMAGE_OPS and not has_method(op) for op in _ops(serving))


def arrays_only(ops: Sequence[Op]) -> str:
    """What the log says of ops that an export cannot contain."""
    lacks = "have no method" if len(ops) > 1 else "has no method"
    return (
        f"export: {', '.join(map(repr, ops))} {lacks} tensorflow(features), so an export has only the signature "
        "arrays, and clients have to decode records themselves. For the other signatures, let the method compute the "
        "same from the tensors of one record, or use ops of infeed that have a form in TensorFlow: "
        f"{', '.join(each.__name__ for each in (*IMAGE_OPS, *MOVING_OPS))}"
    )


def _ops(serving: Serving) -> Iterable[Op]:
    return (step.op for step in serving.rows.steps.values())
