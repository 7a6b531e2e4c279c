"""Which of 24 pictures are bad, and how they are decoded: see the fixture `pictures` in tests/pipeline/inputs."""

from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.shards.schema import Feature, Schema

SCHEMA = Schema(
    "pictures", {"image/encoded": Feature("bytes", content="image"), "label": Feature("int64")}
)
OPS = (DecodeJpeg("image/encoded", shape=(8, 8, 1)), RandomShift(pixels=3))
N = 24
UNDECODABLE, FLIPPED = (3, 4, 16), (10, 11, 23)
BAD = sorted(UNDECODABLE + FLIPPED)
