"""Photographs of any format become pixels, compared with a float64 reference, or an error that says what is wrong."""

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from op_rng import rng_of
from pictures import FORMATS, encoded, picture, rotated
from PIL import Image, ImageOps
from sweep import SWEEP

from pipeline.datasets import train_dataset
from pipeline.errors import SchemaError
from pipeline.hosts import Hosts
from pipeline.ops import DecodeCentralCrop, DecodeRandomResizedCrop, DecodeResize


def keys(x, a):
    """The cubic convolution of Keys (1981)."""
    near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def weights(pixels, out, method):
    """[out, pixels] in float64: what each source pixel adds to a target pixel, by half-pixel centres."""
    scale = pixels / out
    centres = (np.arange(out) + 0.5) * scale - 0.5
    if not method.startswith("antialias"):
        found = np.zeros((out, pixels))
        for row, centre in enumerate(centres):
            for at in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
                x = abs(centre - at)
                weight = max(1 - x, 0) if method == "bilinear" else keys(x, -0.75)
                found[row, min(max(at, 0), pixels - 1)] += weight
    else:
        radius = 1 if method.endswith("bilinear") else 2
        x = np.abs(np.arange(pixels) - centres[:, None]) / max(scale, 1)
        found = np.maximum(1 - x, 0) if radius == 1 else keys(x, -0.5)
    return found / found.sum(1, keepdims=True)


def reference(image, size, method):
    """float64 pixels of a resized image."""
    pixels = np.asarray(image, np.float64)
    rows, columns = (
        weights(pixels.shape[0], size[0], method),
        weights(pixels.shape[1], size[1], method),
    )
    return np.clip(np.einsum("ah,hwc,bw->abc", rows, pixels, columns, optimize=True), 0, 255)


def run(op, data, seed=(7, -3)):
    return op({op.key: data}, rng_of(seed))[op.into]


@pytest.mark.parametrize(
    "method", ["bilinear", "bicubic", "antialias bilinear", "antialias bicubic"]
)
@pytest.mark.parametrize("size", [(48, 64), (100, 37), (160, 200)])
def test_resizing_is_that_of_a_float64_reference_without_a_bias(method, size):
    op = DecodeResize(
        "image", size=size, method=method.split()[-1], antialias=method.startswith("anti")
    )
    difference = run(op, FORMATS["PNG"][0]) - reference(picture(), size, method)
    assert abs(difference).mean() <= 0.4
    assert abs(difference.mean()) <= 0.05
    assert abs(difference).max() <= 1


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_pixels_that_pillow_decodes(name):
    data, levels = FORMATS[name]
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)
    difference = run(DecodeResize("image", size=(80, 120)), data).astype(int) - whole
    assert abs(difference).max() <= 6 * levels
    assert abs(difference).mean() <= 0.4 * levels
    assert abs(difference.mean()) <= 0.3 * levels
    grey = run(DecodeResize("image", size=(80, 120), channels=1), data)[..., 0].astype(int)
    luma = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").convert("L"), int)
    assert abs(grey - luma).mean() <= 0.5 + levels


@pytest.mark.parametrize("name", ["JPEG 4:2:0", "PNG", "lossy WebP"])
def test_both_central_crops_are_those_of_the_whole_image(name):
    data, _ = FORMATS[name]
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    side = int(64 / 96 * 80)
    y, x = (80 - side + 1) // 2, (120 - side + 1) // 2
    square = whole.crop((x, y, x + side, y + side))
    crop_first = run(DecodeCentralCrop("image", size=(64, 64)), data)
    assert abs(crop_first - reference(square, (64, 64), "bilinear")).mean() <= 1
    resize_first = run(DecodeCentralCrop("image", size=(64, 64), resize_short=72), data)
    expected = reference(whole, (72, 108), "bilinear")[4:68, 22:86]
    assert abs(resize_first - expected).mean() <= 1


@pytest.mark.parametrize("orientation", range(9))
def test_a_jpeg_is_turned_by_its_exif_where_the_op_is_upright(orientation):
    data = rotated(orientation)
    turned = encoded(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), "PNG")
    for op in (
        DecodeResize("image", size=(40, 40), fit="pad"),
        DecodeRandomResizedCrop("image", size=(16, 16)),
    ):
        upright = run(replace(op, upright=True), data).astype(int)
        assert abs(upright - run(op, turned)).mean() <= 0.4
        assert (abs(upright - run(op, data)).mean() > 1) == (orientation > 1)


def test_an_image_that_is_padded_keeps_its_ratio_and_is_centred():
    image = run(DecodeResize("image", size=(64, 64), fit="pad"), FORMATS["PNG"][0])
    inner = reference(picture(), (43, 64), "bilinear")
    assert abs(image[10:53] - inner).max() <= 1
    assert not image[:10].any()
    assert not image[53:].any()


def test_a_random_crop_is_a_window_of_the_image_and_half_of_them_are_mirrored():
    data = FORMATS["PNG"][0]
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, (200, 2)).astype(np.int32)
    plain, either = (
        [
            run(DecodeRandomResizedCrop("image", size=(16, 16), flip=flip), data, seed)
            for seed in seeds
        ]
        for flip in (False, True)
    )
    mirrored = [np.array_equal(b, a[:, ::-1]) for a, b in zip(plain, either, strict=True)]
    assert all(m or np.array_equal(a, b) for m, a, b in zip(mirrored, plain, either, strict=True))
    assert 70 < sum(mirrored) < 130
    whole = DecodeRandomResizedCrop(
        "image", size=(40, 60), area=(1, 1), ratio=(1.5, 1.5), flip=False
    )
    expected = run(DecodeResize("image", size=(40, 60)), FORMATS["PNG"][0])
    np.testing.assert_array_equal(run(whole, FORMATS["PNG"][0]), expected)


WRONG = {
    "an HTML page": (
        b"<!DOCTYPE html><html></html>",
        "is no intact image; it must be a JPEG.* with .*<!DOCTYPE",
    ),
    "nothing": (b"", "is no intact image; .* It has 0 bytes"),
    "a JPEG cut in its pixels": (FORMATS["JPEG 4:2:0"][0][:1500], "JPEG"),
    "a JPEG cut in its header": (FORMATS["JPEG 4:2:0"][0][:100], "JPEG"),
    "a PNG cut in its pixels": (FORMATS["PNG"][0][:1500], "PNG"),
    "a WebP cut in its pixels": (FORMATS["lossy WebP"][0][:300], "WebP|WEBP"),
    "a PNG that claims to be huge": (
        FORMATS["PNG"][0][:16] + b"\0\0\xff\xff\0\0\xff\xff" + FORMATS["PNG"][0][24:],
        r"more pixels than max_pixels=\d+\..*Its height and width are 65535 and 65535",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_incomplete_or_invalid_image_is_an_error_that_says_so(name):
    data, message = WRONG[name]
    with pytest.raises(SchemaError, match=f"(?s){message}"):
        run(DecodeResize("image", size=(8, 8)), data)


def test_a_line_of_pixels_is_not_enlarged_without_a_limit():
    op = DecodeCentralCrop("image", size=(8, 8), resize_short=32, max_pixels=3000)
    assert run(op, encoded(picture(40, 20), "PNG")).shape == (8, 8, 3)
    with pytest.raises(SchemaError, match=r"once its shorter side is 32\. .* 32 and 6400\."):
        run(op, encoded(picture(400, 2), "PNG"))


def test_crops_are_the_same_on_any_hosts_after_a_resume_and_on_another_pass(
    write_dataset, tmp_path
):
    images = [encoded(picture(40 + 7 * i, 60 - 3 * i), quality=90) for i in range(12)]
    rest = {"image/class/label": 0, "image/weight": [0, 0]}
    records = [{"image/encoded": image, **rest} for image in images]
    directory = write_dataset(tmp_path / "images", {"train": [records]})
    ops = [DecodeRandomResizedCrop(size=(8, 8))]

    def batches(hosts, skip=0, take=6):
        source = train_dataset(
            directory, global_batch=4, hosts=hosts, ops=ops, seed=5, keys=["image"]
        )
        stream = source.batches(source.advance(source.start, skip))
        taken = [(batch["_index"], batch["image"]) for batch in itertools.islice(stream, take)]
        stream.close()
        return taken

    straight = batches(Hosts(0, 1))
    # anew in every epoch
    assert len({image.tobytes() for _, rows in straight for image in rows}) > 18
    for count in (2, 4) if SWEEP else (2,):
        parts = [batches(Hosts(index, count)) for index in range(count)]
        for step, (ids, images) in enumerate(straight):
            np.testing.assert_array_equal(np.concatenate([part[step][0] for part in parts]), ids)
            np.testing.assert_array_equal(np.concatenate([part[step][1] for part in parts]), images)
    for (ids, images), (again, same) in zip(
        straight[4:], batches(Hosts(0, 1), skip=4, take=2), strict=True
    ):
        np.testing.assert_array_equal(ids, again)
        np.testing.assert_array_equal(images, same)


@pytest.mark.parametrize(
    "op",
    [
        DecodeResize("image"),
        DecodeCentralCrop("image", border=0),
        DecodeRandomResizedCrop("image", area=(1, 1), ratio=(1.5, 1.5)),
    ],
)
@pytest.mark.parametrize("size", [20, 10, 5])
def test_a_large_jpeg_may_be_decoded_at_a_part_of_its_size(op, size):
    data, op = FORMATS["JPEG 4:4:4"][0], replace(op, size=(size, size))
    exact, fast = (run(replace(op, scaled=scaled), data).astype(int) for scaled in (False, True))
    blurred = run(replace(op, antialias=True), data).astype(int)
    assert fast.shape == exact.shape
    # it averages what `exact` skips
    assert abs(fast - blurred).mean() <= abs(exact - blurred).mean()
    assert not np.array_equal(fast, exact)


def test_decoding_at_a_part_of_the_size_changes_no_image_that_would_become_too_small():
    for name in ("JPEG 4:4:4", "PNG"):
        small, usual = (
            run(DecodeResize("image", size=(21, 31), scaled=s), FORMATS[name][0])
            for s in (True, False)
        )
        np.testing.assert_array_equal(small, usual)
