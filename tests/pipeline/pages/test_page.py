"""What a page consists of: escaped text, no network, no scripts, one file."""

import builtins
import re

import pytest

from pipeline.errors import OptionError, StorageError
from pipeline.pages import page as pages
from pipeline.pages.page import (
    Bars,
    Code,
    Figures,
    Histogram,
    Matrix,
    Note,
    Page,
    Picture,
    Pictures,
    Section,
    Share,
    Table,
    check_page,
    write_page,
)

ODD = "<b onload=x>\"'&{{ 1 }}{% raw %}\x1b[31m\u202eabc"
SHOWN = "&lt;b onload=x&gt;&#34;&#39;&amp;{{ 1 }}{% raw %}\\x1b[31m\\u202eabc"
PIXEL = Picture("data:image/png;base64,AA==", ODD, 1, 1)

BLOCKS = [
    Figures([(ODD, ODD, ODD), ("1", "a", "")], title=ODD, note=ODD),
    Table((ODD,), [(ODD,), (None,), (1.5,), (12345,), (Share(0.935),)], title=ODD, note=ODD),
    Bars([(ODD, 3), (ODD, 0)], title=ODD, note=ODD),
    Bars([], title=ODD),
    Histogram([(ODD, 3), ("b", 0)], ODD, ODD, title=ODD, note=ODD),
    Matrix([ODD, "b"], [[1, 0], [0, 0]], ODD, ODD, title=ODD, note=ODD),
    Pictures([(PIXEL, [ODD, "", ODD])], title=ODD, note=ODD),
    Note(ODD, title=ODD, warning=True),
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_every_text_is_escaped_and_controls_are_visible(block):
    html = Page(ODD, ODD, [Section(ODD, [block])], ODD).html()
    assert "<b onload" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert SHOWN in html


def test_code_keeps_its_lines_and_is_escaped():
    html = Page("page", "", [Section("code", [Code("a <b>\n  c")])]).html()
    assert "a &lt;b&gt;\n  c</pre>" in html


def test_numbers_are_formatted_and_an_empty_section_is_left_out():
    html = Page("page", "", [Section("numbers", [BLOCKS[1]]), Section("nothing", [])]).html()
    assert re.findall('<td class="number">(.*?)</td>', html) == ["1.5", "12,345", "93.5 %"]
    assert "nothing" not in html


def test_a_bar_of_zero_has_no_width_and_a_small_one_can_be_seen():
    html = Page(
        "page", "", [Section("bars", [Bars([("none", 0), ("one", 1), ("most", 100_000)])])]
    ).html()
    assert re.findall('style="(width: .*?)"', html) == [
        "width: 0.00%",
        "width: 0.00%; min-width: 1px",
        "width: 100.00%; min-width: 1px",
    ]


def test_a_heading_is_aligned_as_the_numbers_below_it():
    table = Table(
        ("first empty", "text", "mixed", "empty"), [(None, "a", 1, None), (2.5, "b", "c", None)]
    )
    assert table.numeric == [True, False, False, False]
    html = Page("page", "", [Section("numbers", [table])]).html()
    assert (
        html.count('<th scope="col" class="number">first empty</th>')
        == html.count('<th scope="col" class="number">')
        == 1
    )


def test_a_path_where_no_file_can_be_made_is_refused_before_anything_is_read(tmp_path):
    check_page(str(tmp_path / "new" / "page.html"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        OptionError,
        match=r"cannot write /proc/page\.html: /proc: .*\. Give a file in another directory",
    ):
        check_page("/proc/page.html")


def test_what_is_folded_is_in_the_page_and_more_than_twelve_pictures_are_folded():
    pictures = Pictures([(PIXEL, [str(number)]) for number in range(15)])
    html = Page(
        "page", "", [Section("", [pictures]), Section("rest", [Note("told")], folded=True)]
    ).html()
    assert html.count("<img ") == 15
    opened, folded = html.split("<summary>3 more</summary>")
    assert (opened.count("<img "), folded.count("<img ")) == (12, 3)
    assert re.search(
        r"<details><summary><h2>rest</h2></summary>.*told.*</details></section>", html, re.DOTALL
    )
    assert html.count("<h2>") == 1


def test_a_long_text_has_room_next_to_many_columns():
    html = Page(
        "page", "", [Section("texts", [Table(("text", *"abc"), [("word " * 9, *"abc")])])]
    ).html()
    assert html.count('<td class="long">word word') == html.count('class="long"') == 1


def test_a_page_appears_completely_on_a_disk_and_in_a_bucket(tmp_path, bucket, gcs_server):
    page = Page("page", "of one sentence")
    for path in (f"{tmp_path}/new/page.html", f"{bucket}/page.html"):
        assert write_page(path, page) == len(page.html())
    assert (tmp_path / "new/page.html").read_text() == page.html()
    assert gcs_server.read(bucket.removeprefix("gs://"), "page.html").decode() == page.html()


def test_a_page_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MOST_BYTES", 100)
    with pytest.raises(StorageError, match=r"page\.html would have .* more than 100 B"):
        write_page(f"{tmp_path}/page.html", Page("page", ""))
    assert not list(tmp_path.iterdir())


def test_without_jinja2_the_error_names_the_command_that_installs_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "jinja2":
            raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")
        return real(name, *args, **kwargs)

    pages._template.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        OptionError, match=r"pages need jinja2\. Install it: pip install -e '.*\[pages\]'"
    ):
        Page("page", "").html()
