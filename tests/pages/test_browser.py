"""Every kind of page in a browser: wide and narrow, light and dark, with names that look like markup."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import find_browser, open_browser
from odd_names import MARKUP, dataset_with_markup, text_with_markup
from PIL import Image

from pipeline import describe
from pipeline.datasets import train_dataset
from pipeline.describing.shown_records import show_records
from pipeline.pages.page import Page, Pictures, Section, Table, write_page
from pipeline.pages.thumbnails import thumbnail_of_array
from pipeline.shards.schema import Labels
from pipeline.sources.open_dataset import open_dataset
from trainer import report, seen
from trainer.command.page_writing import LookedAt, look_page
from trainer.history.segments import Start, append
from trainer.pages.evaluation import About, evaluation_page
from trainer.results import EvalResult, EvaluatedRecords, Look

NAMES = Labels("label", 0, (MARKUP, "plain"))

pytestmark = pytest.mark.skipif(
    find_browser() is None and "CI" not in os.environ, reason="needs chromium; CI fails without it"
)


def dataset(directory, data):
    describe.main([data, f"--html={directory}/page.html"])


def text(directory, _):
    (directory / "data").mkdir()
    describe.main([text_with_markup(directory / "data"), f"--html={directory}/page.html"])


def run_seen(directory, data):
    source = train_dataset(data, global_batch=4, keys=["label"])
    start = Start(
        0,
        "2026-11-23T12:00:00+00:00",
        source.state(source.start),
        source.info.provenance,
        {},
        None,
        {},
        "1 x cpu, 1 process",
    )
    append(str(directory), start)
    (directory / "train").mkdir()
    (directory / "train/metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 0.5}) + "\n")
    seen.main([str(directory), "--step=1", "--to=2", f"--html={directory}/page.html"])


def evaluation(directory, data):
    records = open_dataset(data)
    rng = np.random.default_rng(0)
    label, predicted = rng.integers(0, 2, (2, 8))
    probability = rng.random(8).astype(np.float32)
    predictions = {"class": predicted, "label": label, "probability": probability}
    evaluated = EvaluatedRecords(np.arange(8), rng.exponential(size=8).astype(np.float32), predictions)
    result = EvalResult(3, {MARKUP: 0.5, "loss": 0.25}, 8, 8, 0, 8, 7, 7, 1.0)
    about = About(MARKUP, {"data": MARKUP}, NAMES, NAMES, lambda ids: show_records(records, ids), MARKUP)
    write_page(f"{directory}/page.html", evaluation_page(result, evaluated, about))


def look(directory, data):
    stored = show_records(open_dataset(data), [0, 1])
    image = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    draw = {"image": image, MARKUP: np.array([1, 0]), "label": np.array([0, 1]), "_mask": np.ones(2, np.float32)}
    page = look_page(Look(np.array([0, 1]), [draw, draw], draw), LookedAt(MARKUP, stored, NAMES))
    write_page(f"{directory}/page.html", replace(page, made_by=MARKUP))


def training(directory, data):
    start = Start(0, "2026-11-23T12:00:00+00:00", {}, None, {MARKUP: MARKUP}, None, {MARKUP: "1"}, MARKUP)
    append(str(directory), start)
    (directory / "train").mkdir()
    lines = [{"step": step, "loss": 1 / step, MARKUP: step} for step in range(1, 200)]
    (directory / "train/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report.main([str(directory), f"--html={directory}/page.html"])


PAGES = {
    "training": training,
    "dataset": dataset,
    "text": text,
    "seen": run_seen,
    "evaluation": evaluation,
    "look": look,
}
HAS = {"training": "svg", "text": "td"}  # others: images


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """name -> the page's file."""
    data = dataset_with_markup(tmp_path_factory.mktemp("data"))
    files = {}
    for name, make in PAGES.items():
        directory = tmp_path_factory.mktemp(name)
        make(directory, data)
        files[name] = Path(directory, "page.html")
    return files


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_any_window_loads_nothing_and_shows_markup_as_text(pages, browser, name):
    grounds = set()
    for width in (1200, 390):
        for dark in (False, True):
            view = browser.show(pages[name], width, dark)
            assert view.problems == []
            assert view.overflow <= 0
            grounds.add(view.ground)
    assert len(grounds) == 2  # light and dark
    assert view.count("script") == view.count("b") == view.count("iframe") == 0
    assert MARKUP in view.text
    assert view.count(HAS.get(name, "img")) > 0
    assert view.broken_images == []
    assert view.count("h1") == 1
    assert pages[name].stat().st_size < 5e6


def test_a_wide_table_below_pictures_keeps_its_lines_short_and_shows_that_it_scrolls(browser, tmp_path):
    picture = thumbnail_of_array(np.zeros((8, 8), np.uint8), "black")
    cells = [0, 1_173, 0, "10 n00000009", "train/n00000009/n00000009_815.JPEG", "train", "train-00004-of-00006"]
    keys = Table(("row", "index", "epoch", "label", "key", "split", "shard"), [cells])
    write_page(f"{tmp_path}/page.html", Page("wide", "", [Section("wide", [Pictures([(picture, [])]), keys])]))
    for dark in (False, True):
        browser.show(tmp_path / "page.html", 390, dark)
        grid, row = (box_of(browser, selector) for selector in (".pictures", "tbody tr"))
        assert row["height"] < 40
        assert box_of(browser, ".wide")["top"] - grid["bottom"] >= 15
        assert browser.evaluate("(e => e.scrollWidth > e.clientWidth)(document.querySelector('.wide'))")
        browser.screenshot(tmp_path / "page.png")
        with Image.open(tmp_path / "page.png") as image:
            x, y = box_of(browser, ".wide")["right"] - 1, row["bottom"] - 3
            edge, ground = (image.convert("RGB").getpixel((at, int(y))) for at in (x, 1))
        assert max(abs(a - b) for a, b in zip(edge, ground, strict=True)) > 25


def box_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
