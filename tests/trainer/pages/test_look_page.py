"""The page of --mode look: pictures, numbers, soft labels and texts of each draw, and the features of the batch."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from pipeline.describing.shown_records import ShownRecord
from pipeline.pages.page import Note, Table
from pipeline.shards.schema import Labels
from trainer.command.page_writing import LookedAt, look_page
from trainer.results import Look

NAMES = Labels("label", 1, ("cat", "dog", "mouse"))


def draw(seed, **others):
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(2, 8, 8, 3)).astype(np.float32)
    return {"image": image, "label": np.array([1, 3]), "_mask": np.ones(2, np.float32), **others}


def table_of(page):
    (table,) = (block for block in page.sections[0].blocks if isinstance(block, Table))
    return table


def notes_of(page):
    return " ".join(block.text for block in page.sections[0].blocks if isinstance(block, Note))


@pytest.fixture(scope="module")
def stored():
    labels = {4: "1 cat", 9: "3 mouse"}
    return [ShownRecord(number, f"shard, record {number}", f"{number}.jpg", label) for number, label in labels.items()]


def test_each_draw_has_its_pictures_and_its_labels_in_words(stored):
    soft = np.array([[0.1, 0.7, 0.2], [0.0, 0.0, 1.0]], np.float32)
    draws = [draw(0, labels=soft), draw(1, labels=soft[::-1])]
    page = look_page(Look(np.array([4, 9]), draws, draws[0]), LookedAt("pets", stored, NAMES))
    table = table_of(page)
    assert [*table.columns] == ["record", "as stored", "epoch 0", "epoch 1"]
    first = table.rows[0]
    assert [*first[0].lines] == ["4", "4.jpg"]
    assert [*first[2].lines] == ["label: 1 cat", "labels: dog 70.0%, mouse 20.0%, cat 10.0%"]
    assert [*first[3].lines] == ["label: 1 cat", "labels: mouse 100.0%"]
    assert first[2].pictures[0].source != first[3].pictures[0].source
    assert notes_of(page) == (
        "Images that are not uint8 are scaled: the smallest value in the batch is black, the largest is white."
    )
    assert page.html().count("<img ") == 4
    assert [[*row[0].lines] for row in table.rows] == [["4", "4.jpg"], ["9", "9.jpg"]]
    assert [row[1].lines[0] for row in table.rows] == ["1 cat", "3 mouse"]


def test_draws_that_are_all_the_same_are_shown_once(stored):
    draws = [draw(0), draw(0)]
    page = look_page(Look(np.array([4, 9]), draws, draws[0]), LookedAt("pets", stored, NAMES))
    assert [*table_of(page).columns] == ["record", "as stored", "as the model sees it"]
    assert "The draws are all the same, so one is shown" in notes_of(page)


def test_one_draw_that_was_asked_for_has_no_note_and_batches_that_repeat_say_so():
    batch = {"label": np.array([1, 3])}
    assert notes_of(look_page(Look(None, [batch], batch), LookedAt("pets"))) == ""
    page = look_page(Look(None, [batch], batch, first_batch=True), LookedAt("pets", repeats=True))
    assert notes_of(page) == (
        "The training repeats its first batches unchanged, as overfit_batches asks, so the first one is shown, once."
    )


def test_an_input_that_draws_once_says_so_and_tokens_are_texts():
    batch = {"tokens": np.array([[1, 2, 3]] * 2), "weight": np.array([0.5, 2.5], np.float32)}
    about = LookedAt("text", text_of=lambda values: f"a\n{values['tokens'][0]}")
    page = look_page(Look(None, [batch], batch, first_batch=True), about)
    assert notes_of(page) == "The input cannot draw a record again, so its first batch is shown, once."
    assert [*table_of(page).rows[1][1].lines] == ["a ↵ 1", "weight: 2.5"]
    assert ["weight", "float32", "[]", 0.5, 1.5, 2.5] in page.sections[1].blocks[0].rows


def test_a_bright_image_stays_brighter_than_a_dark_one():
    image = np.concatenate([np.full((1, 8, 8, 1), 10.0), np.full((1, 8, 8, 1), 200.0)]).astype(np.float32)
    image[:, 0, 0] = [[0.0], [255.0]]
    batch = {"image": image}
    rows = table_of(look_page(Look(None, [batch], batch), LookedAt("pets"))).rows
    assert brightness(rows[0][1].pictures[0]) == 10
    assert brightness(rows[1][1].pictures[0]) == 200


def brightness(picture):
    with Image.open(io.BytesIO(base64.b64decode(picture.source.partition(",")[2]))) as image:
        return image.getpixel((4, 4))[0]
