"""The decoding of records in a graph, which an export has in front of its model: parsing, padding,
ops, 32-bit numbers.

pipeline.decoding.rows computes the same in NumPy. The verification of an export compares what
follows from both.

Pixels may differ from those of the ops by rounding: TensorFlow has its own decoders and resizes in
float32. For images that cannot be decoded the graph raises InvalidArgumentError."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from pipeline.decoding.encoded_images import JPEG
from pipeline.decoding.op import Features, Op
from pipeline.decoding.padding import PadTo
from pipeline.decoding.planning import Step
from pipeline.decoding.rows import RowDecoder
from pipeline.errors import ExportError, InfeedError
from pipeline.inputs.tf_examples import parsing_of
from pipeline.ops import DecodeCentralCrop, DecodeJpeg, DecodePng, DecodeResize, Drop, Keep, Rename
from pipeline.raw.image_files import TURNS
from pipeline.raw.jpeg import PNG_MAGIC
from pipeline.shards.schema import Schema
from pipeline.spec import centered, delivered
from pipeline.tf_cpu import tf

# they never look at a value, so they take tensors as well as arrays
MOVING_OPS = (Keep, Drop, Rename)
# of a request, in tf.map_fn, whose default of 10 is less than the cores of a server
PARALLEL_RECORDS = 32
ITS_SIZE = "Its height and width are"
_PAYLOAD = ""  # no feature has this key
# what EXIF has before the value of an orientation, in both byte orders
_ORIENTATIONS = (b"\x01\x12\0\3\0\0\0\1\0", b"\x12\x01\3\0\1\0\0\0")
_EXIF_BYTES = 1 << 16
# the first four words: https://www.w3.org/TR/png-3/
_PNG = np.frombuffer(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", ">i4").astype(np.int32)


def decode_payloads(rows: RowDecoder, payloads: Any) -> Features:
    """The features `keys` of records, string [n]: tensors [n, *shape].

    The graph raises InvalidArgumentError for a record that does not match the layout, such as an
    Example without a required feature, and for numbers out of the range of 32 bits."""
    layout = rows.layout
    stored = dict.fromkeys(rows.stored, payloads)
    if rows.stored and isinstance(layout, Schema) and not layout.opaque:
        parsing = {key: parsing_of(layout.features[key]) for key in rows.stored}
        stored = tf.io.parse_example(payloads, parsing)
    # Ops may need no feature of a record; then the payloads state how many there are.
    return decode_stored(rows, {_PAYLOAD: payloads, **stored})


def decode_stored(rows: RowDecoder, stored: Features) -> Features:
    """The same, from the features `stored` of n records, each [n, *shape].

    A (None,) feature is a RaggedTensor. An optional feature that is absent is 0 or b"", or an empty
    row."""
    features = _padded(stored, rows.pad_to)
    if rows.steps:
        features |= _outputs_of_ops(rows, features)
    return {key: narrowed(key, features[key], rows.offsets.get(key)) for key in rows.keys}


def _padded(features: Features, pad_to: Mapping[str, PadTo]) -> Features:
    """Those of any length padded to [n, length], and their lengths."""
    result = dict(features)
    for key in features.keys() & pad_to.keys():
        ragged = features[key]
        pad = pad_to[key]
        lengths = ragged.row_lengths()
        if not pad.truncate:
            longest = tf.reduce_max(lengths)
            message = f"{key!r} has more values than the {pad.length} that pad_to allows. It has"
            ragged = checked(ragged, longest <= pad.length, [message, longest])
        fill = np.array(pad.value, ragged.dtype.as_numpy_dtype)
        result[key] = ragged.to_tensor(fill, shape=[None, pad.length])
        if pad.length_into is not None:
            result[pad.length_into] = tf.cast(tf.minimum(lengths, pad.length), tf.int32)
    return result


def _outputs_of_ops(rows: RowDecoder, features: Features) -> Features:
    """The features among `keys` that ops set."""
    signature = {
        key: tf.TensorSpec(spec.shape, spec.dtype) for key, spec in rows.set_by_ops.items()
    }

    for op in (step.op for step in rows.steps.values()):
        if isinstance(op, DecodeCentralCrop | DecodeResize) and op.key in features:
            features = features | {op.key: _decodable(op.key, features[op.key])}

    def one(features: Features) -> Features:
        for step in rows.steps.values():
            features = features | _outputs(step, features)
        return {key: features[key] for key in signature}

    return tf.map_fn(
        one, features, fn_output_signature=signature, parallel_iterations=PARALLEL_RECORDS
    )


def _outputs(step: Step, features: Features) -> Features:
    """What an op sets. Raises ExportError if its method fails, or returns anything but what the op
    promises."""
    try:
        outputs = cast(Any, graph_of(step.op))(features)
        outputs = {key: tf.convert_to_tensor(outputs[key]) for key in step.sets}
    except InfeedError:
        raise
    except Exception as e:
        raise ExportError(
            f"{step.op!r}: its method tensorflow raised {type(e).__name__}: {e}"
        ) from e
    for key, tensor in outputs.items():
        shape = step.sets[key].shape
        dtype = tf.as_dtype(step.sets[key].dtype)
        if tensor.dtype != dtype or not tensor.shape.is_compatible_with(shape):
            raise ExportError(
                f"{step.op!r}: its method tensorflow returned {key!r} as {tensor.dtype.name} "
                f"{tensor.shape}; its output_spec promises {dtype.name} {shape}."
            )
        outputs[key] = tf.ensure_shape(tensor, shape)
    return outputs


def graph_of(op: Op) -> Callable[[Features], Features] | None:
    """What computes with tensors what the op computes with arrays: its own method, from features of
    one record to those that it sets, or ours. None if there is neither.

    A subclass may compute anything, so only the very types of our ops count; with `scaled`, pixels
    would differ by more than rounding."""
    if callable(method := getattr(op, "tensorflow", None)):
        return cast(Any, method)
    if type(op) in MOVING_OPS:
        return partial(op, rng=cast(Any, None))
    if type(op) in TWINS and not getattr(op, "scaled", False):
        return partial(_image, op)
    return None


def arrays_only(rows: RowDecoder) -> str | None:
    """What the log says of ops that an export cannot contain; None if it can contain all."""
    ops = [step.op for step in rows.steps.values() if graph_of(step.op) is None]
    if not ops:
        return None
    lacks = "have no method" if len(ops) > 1 else "has no method"
    return (
        f"export: {', '.join(map(repr, ops))} {lacks} tensorflow(features), so an export has only "
        "the signature arrays, and clients have to decode records themselves. For the other "
        "signatures, let the method compute the same from the tensors of one record, or use ops of "
        "infeed that have a form in TensorFlow: "
        f"{', '.join(each.__name__ for each in (*TWINS, *MOVING_OPS))}"
    )


def decodes_images(rows: RowDecoder) -> bool:
    """Whether its pixels may differ by rounding: TensorFlow decodes and resizes images in an
    export."""
    return any(type(step.op) in TWINS for step in rows.steps.values())


def narrowed(key: str, value: Any, offset: int | None) -> Any:
    """Narrows 64 bits to 32, because JAX computes in 32. A value out of range is an error; floats
    are rounded, and so are integers minus an offset."""
    if offset is not None and value.dtype.is_integer:
        return centered(value, offset, tf.cast)
    wide = np.dtype(value.dtype.as_numpy_dtype)
    dtype = delivered(wide)
    if dtype == wide:
        return value
    small = tf.cast(value, dtype)
    if dtype.kind == "f":
        same = tf.math.is_finite(small) == tf.math.is_finite(value)
    else:
        same = tf.cast(small, value.dtype) == value
    message = f"{key!r} has a value out of the range of {dtype}. Its maximum and minimum are"
    return checked(
        small, tf.reduce_all(same), [message, tf.reduce_max(value), tf.reduce_min(value)]
    )


def _decodable(key: str, encoded: Any) -> Any:
    """The images of n records; the graph names the rows of those in formats that it cannot
    decode."""
    known = [tf.strings.substr(encoded, 0, len(head)) == head for head in (JPEG, PNG_MAGIC)]
    rows = tf.where(~tf.reduce_any(known, 0))[:, 0]
    message = f"{key!r} is neither a JPEG nor a PNG, which an export decodes, in the rows"
    return checked(encoded, tf.size(rows) == 0, [message, rows])


def _image(op: Any, features: Features) -> Features:
    return {op.into: TWINS[type(op)](op, features[op.key])}


def _fixed(op: DecodeJpeg | DecodePng, encoded: Any) -> Any:
    if isinstance(op, DecodeJpeg):
        what, size, pixels = "a JPEG", _jpeg_size(encoded), _jpeg_pixels
    else:
        what, size, pixels = "not a PNG, or a PNG", _png_size(encoded), _png_pixels
    height, width, channels = op.shape
    message = f"{op.key!r} is {what} of a size other than {height} x {width}. {ITS_SIZE}"
    return pixels(
        checked(encoded, tf.reduce_all(size == (height, width)), [message, size]), channels
    )


def _central_crop(op: DecodeCentralCrop, encoded: Any) -> Any:
    pixels = _photo(op, encoded)
    side = op.size[0]
    height_width = tf.shape(pixels)[:2]
    shorter = tf.cast(tf.reduce_min(height_width), tf.float32)
    if op.resize_short is None:
        # float32, as in
        # https://github.com/tensorflow/tpu/blob/master/models/official/resnet/resnet_preprocessing.py
        square = tf.maximum(tf.cast(np.float32(side / (side + op.border)) * shorter, tf.int32), 1)
        return _resized(op, _window(pixels, (height_width - square + 1) // 2, square), op.size)
    ratio = np.float32(op.resize_short) / shorter
    small = tf.cast(tf.round(tf.cast(height_width, tf.float32) * ratio), tf.int32)
    return _window(_resized(op, pixels, small), (small - side) // 2, side)


def _resize(op: DecodeResize, encoded: Any) -> Any:
    pixels = _photo(op, encoded)
    if op.fit == "stretch":
        return _resized(op, pixels, op.size)
    size = tf.constant(op.size)
    height_width = tf.cast(tf.shape(pixels)[:2], tf.float64)
    scale = tf.reduce_min(tf.cast(size, tf.float64) / height_width)
    inner = tf.maximum(tf.cast(tf.round(height_width * scale), tf.int32), 1)
    before = (size - inner) // 2
    padding = tf.pad(tf.stack([before, size - inner - before], 1), [[0, 1], [0, 0]])
    return tf.pad(_resized(op, pixels, inner), padding)


TWINS: Mapping[type, Callable[[Any, Any], Any]] = {
    DecodeJpeg: _fixed,
    DecodePng: _fixed,
    DecodeCentralCrop: _central_crop,
    DecodeResize: _resize,
}
"""Op on images -> what computes the same pixels from the op and one encoded image."""


def _photo(op: DecodeCentralCrop | DecodeResize, encoded: Any) -> Any:
    """uint8 [h, w, channels] of a JPEG or a PNG of up to max_pixels pixels."""
    is_jpeg = tf.strings.substr(encoded, 0, len(JPEG)) == JPEG
    size = tf.cond(is_jpeg, lambda: _jpeg_size(encoded), lambda: _png_size(encoded))
    size = checked(size, tf.reduce_min(size) > 0, [f"{op.key!r} is neither a JPEG nor a PNG"])
    message = f"{op.key!r} has more pixels than max_pixels={op.max_pixels}. {ITS_SIZE}"
    # What is decoded follows from the check: branches do not preserve an order.
    count = tf.reduce_prod(tf.cast(size, tf.int64))
    encoded = checked(encoded, count <= op.max_pixels, [message, size])
    pixels = tf.cond(
        is_jpeg,
        lambda: _jpeg_pixels(encoded, op.channels),
        lambda: _png_pixels(encoded, op.channels),
    )
    if op.upright:
        turn = tf.gather(TURNS, tf.where(is_jpeg, _orientation(encoded), 0))
        sides: Any = tf.concat([turn[:1], 1 - turn[:1], [2]], 0)
        pixels = tf.transpose(pixels, sides)
        pixels = tf.reverse(pixels, tf.where(turn[1:])[:, 0])
    return tf.ensure_shape(pixels, [None, None, op.channels])


def _jpeg_pixels(encoded: Any, channels: int) -> Any:
    def decoded(channels: int) -> Any:
        # The exact DCT: TensorFlow's default is 0.8 levels too dark.
        return tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE")

    if channels == 3:
        return decoded(3)
    is_cmyk = tf.io.extract_jpeg_shape(encoded)[2] == 4
    return tf.cond(is_cmyk, lambda: _in_channels(decoded(3), 1), lambda: decoded(1))


def _png_pixels(encoded: Any, channels: int) -> Any:
    return _in_channels(tf.io.decode_png(encoded, channels=3), channels)


def _in_channels(colours: Any, channels: int) -> Any:
    """RGB, or its luma (ITU-R BT.601), as in a JPEG's own."""
    if channels == 3:
        return colours
    weighted = tf.cast(colours, tf.float32) * [0.299, 0.587, 0.114]
    return tf.cast(tf.round(tf.reduce_sum(weighted, -1, keepdims=True)), tf.uint8)


def _orientation(encoded: Any) -> Any:
    """int32: what the first entry of EXIF with the orientation says; 0 if there is none."""
    head = tf.strings.substr(encoded, 0, _EXIF_BYTES)
    values = [tf.strings.split(head, entry)[1:2] for entry in _ORIENTATIONS]
    first = tf.concat([*values, [b"\0"]], 0)[0]
    value = tf.io.decode_raw(first, tf.uint8, fixed_length=1)[0]
    return tf.where(value < len(TURNS), tf.cast(value, tf.int32), 0)


def _jpeg_size(encoded: Any) -> Any:
    return tf.io.extract_jpeg_shape(encoded)[:2]


def _png_size(encoded: Any) -> Any:
    """int32 [2], height and width; zeros for other data."""
    words = tf.io.decode_raw(encoded, tf.int32, little_endian=False, fixed_length=24)
    return tf.where(tf.reduce_all(words[:4] == _PNG), words[:3:-1], 0)


def _window(pixels: Any, corner: Any, side: Any) -> Any:
    return tf.slice(pixels, tf.concat([corner, [0]], 0), tf.stack([side, side, -1]))


def _resized(op: DecodeCentralCrop | DecodeResize, pixels: Any, size: Any) -> Any:
    """uint8 [*size, c], with half-pixel centres."""
    if op.method == "bicubic" and not op.antialias:
        values = _bicubic(tf.cast(pixels, tf.float32), tf.unstack(tf.convert_to_tensor(size)))
    else:
        values = tf.image.resize(pixels, size, method=op.method, antialias=op.antialias)
    # bicubic leaves the range
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, 255.0)), tf.uint8)


def _bicubic(values: Any, size: Sequence[Any]) -> Any:
    """float32 [*size, c]: the cubic convolution of Keys (1981) with a = -0.75, like OpenCV's and
    PyTorch's. TensorFlow has a = -0.5."""
    for side in size:
        count = tf.shape(values)[0]
        centres = (tf.range(tf.cast(side, tf.float64)) + 0.5) * (count / side) - 0.5
        taps = tf.floor(centres)[:, None] + np.arange(-1.0, 3.0)
        x = tf.cast(tf.abs(centres[:, None] - taps), tf.float32)
        near = (1.25 * x - 2.25) * x * x + 1
        far = ((-0.75 * x + 3.75) * x - 6) * x + 3
        weights = tf.reshape(tf.where(x <= 1, near, far), [-1, 4, 1, 1])
        rows = tf.gather(values, tf.clip_by_value(tf.cast(taps, tf.int32), 0, count - 1))
        values = tf.transpose(tf.reduce_sum(rows * weights, 1), [1, 0, 2])
    return values


def checked(value: Any, condition: Any, message: list[Any]) -> Any:
    """The value; the graph raises InvalidArgumentError with the message unless the condition
    holds."""
    # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us per image.
    with tf.control_dependencies(
        [tf.raw_ops.Assert(condition=condition, data=message, summarize=8)]
    ):
        return tf.identity(value)
