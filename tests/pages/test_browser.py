"""Every kind of page in a browser: wide and narrow, light and dark, with names that look like markup."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from browser import find_browser, open_browser
from odd_names import MARKUP, dataset_with_markup, text_with_markup
from PIL import Image

from pipeline.commands import describe
from pipeline.pages.figures import thumbnail_of_array
from pipeline.pages.page import page_html, write_page
from pipeline.pages.shown_records import show_records
from pipeline.shards.schema import Labels
from pipeline.sources.open_dataset import open_dataset
from trainer.commands.evaluation_page import evaluation_page
from trainer.results import EvalResult, EvaluatedRecords

NAMES = Labels("label", 0, (MARKUP, "plain"))
WIDE = """
{% extends "page.html" %}
{% from "blocks.html" import pictures, section, table %}
{% block main %}
{% call section("wide") %}{{ pictures([([picture], [])]) }}{{ table(names, [cells]) }}{% endcall %}
{% endblock %}
"""

pytestmark = pytest.mark.skipif(
    find_browser() is None and "CI" not in os.environ, reason="needs chromium; CI fails without it"
)


def dataset(directory, data):
    describe.main([data, f"--html={directory}/page.html"])


def text(directory, _):
    (directory / "data").mkdir()
    describe.main([text_with_markup(directory / "data"), f"--html={directory}/page.html"])


def evaluation(directory, data):
    records = open_dataset(data)
    rng = np.random.default_rng(0)
    label, predicted = rng.integers(0, 2, (2, 8))
    probability = rng.random(8).astype(np.float32)
    predictions = {"class": predicted, "label": label, "probability": probability}
    evaluated = EvaluatedRecords(
        np.arange(8), rng.exponential(size=8).astype(np.float32), predictions
    )
    result = EvalResult(3, {MARKUP: 0.5, "loss": 0.25}, 8, 8, 0, 8, 7, 7, 1.0)
    page = evaluation_page(
        result,
        evaluated,
        MARKUP,
        {"data": MARKUP},
        class_names=NAMES,
        label_names=NAMES,
        show=lambda ids: show_records(records, ids),
        made_by=MARKUP,
    )
    write_page(f"{directory}/page.html", page)


PAGES = {"dataset": dataset, "text": text, "evaluation": evaluation}


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
            for opened in ("false", "true"):
                browser.evaluate(
                    f"document.querySelectorAll('details').forEach(each => each.open = {opened})"
                )
                assert view.overflow <= 0
            grounds.add(view.ground)
    assert len(grounds) == 2  # light and dark
    assert view.count("script") == view.count("b") == view.count("iframe") == 0
    assert MARKUP in view.text
    assert view.count("td" if name == "text" else "img") > 0
    assert view.broken_images == []
    assert view.count("h1") == 1
    assert pages[name].stat().st_size < 5e6


def test_a_white_picture_has_an_edge_and_a_wide_table_shows_that_it_scrolls(browser, tmp_path):
    picture = thumbnail_of_array(np.full((8, 8), 255, np.uint8), "white")
    cells = [
        0,
        1_173,
        0,
        "10 n00000009",
        "train/n00000009/n00000009_815.JPEG",
        "train",
        "train-00004-of-00006",
    ]
    names = ("row", "index", "epoch", "label", "key", "split", "shard")
    template = tmp_path / "wide.html"
    template.write_text(WIDE)
    facts = {"title": "wide", "lead": "", "made_by": ""}
    page = page_html(template, {**facts, "picture": picture, "names": names, "cells": cells})
    write_page(f"{tmp_path}/page.html", page)
    for dark in (False, True):
        browser.show(tmp_path / "page.html", 390, dark)
        grid, row, white = (
            box_of(browser, selector) for selector in (".pictures", "tbody tr", "img")
        )
        assert row["height"] < 40
        assert box_of(browser, ".wide")["top"] - grid["bottom"] >= 15
        assert browser.evaluate(
            "(e => e.scrollWidth > e.clientWidth)(document.querySelector('.wide'))"
        )
        browser.screenshot(tmp_path / "page.png")
        with Image.open(tmp_path / "page.png") as image:
            shown = image.convert("RGB")
        ground = shown.getpixel((1, int(row["bottom"] - 3)))
        shadow = shown.getpixel((box_of(browser, ".wide")["right"] - 1, int(row["bottom"] - 3)))
        edge = shown.getpixel((int(white["left"]), int((white["top"] + white["bottom"]) / 2)))
        for color in (shadow, edge):
            assert max(abs(a - b) for a, b in zip(color, ground, strict=True)) > 25


def test_pictures_are_three_to_a_row_on_a_phone_and_figures_are_large(pages, browser):
    browser.show(pages["dataset"], 390)
    columns = browser.evaluate(
        "getComputedStyle(document.querySelector('.pictures')).gridTemplateColumns.split(' ')"
    )
    assert len(columns) == 3
    size = "parseFloat(getComputedStyle(document.querySelector('%s')).fontSize)"
    assert browser.evaluate(size % ".figures strong") > 24
    assert browser.evaluate(size % "figcaption") >= 12


def box_of(browser, selector):
    return browser.evaluate(
        f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"
    )
