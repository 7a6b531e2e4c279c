"""Pictures of which some are bad."""

import numpy as np
import pytest
from bad_pictures import FLIPPED, SCHEMA, UNDECODABLE, N
from damage import flip_payload_bits
from pictures import encoded
from PIL import Image

from pipeline.inputs import dataset_input


@pytest.fixture(scope="module")
def pictures(write_dataset, tmp_path_factory) -> tuple[str, str]:
    """(intact, damaged): 24 pictures in shards of 9, 0 and 15; in the second those of BAD are bad."""
    made = []
    for name, undecodable in (("intact", ()), ("damaged", UNDECODABLE)):
        records = []
        for i in range(N):
            noise = np.random.default_rng(i).integers(0, 255, (8, 8), np.uint8)
            jpeg = encoded(Image.fromarray(noise))
            records.append({"image/encoded": jpeg[: 100 if i in undecodable else None], "label": i})
        shards = [records[:9], [], records[9:]]
        directory = tmp_path_factory.mktemp(name)
        made.append(write_dataset(directory, {"train": shards, "validation": shards}, SCHEMA))
    for split in ("train", "validation"):
        flip_payload_bits(made[1], split, *FLIPPED)
    return made[0], made[1]


@pytest.fixture
def two_workers(monkeypatch):
    """What workers="auto" chooses, whatever the costs are. With read_ahead_bytes=1 they make the third batch."""
    monkeypatch.setattr(dataset_input, "choose_workers", lambda *_: 2)
