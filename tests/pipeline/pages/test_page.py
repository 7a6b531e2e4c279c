"""What a page consists of: escaped text, no network, no scripts, one file."""

import builtins
import re

import pytest

from pipeline.errors import OptionError, StorageError
from pipeline.pages import page as pages
from pipeline.pages.figures import Histogram, Picture
from pipeline.pages.page import Share, check_page, page_html, write_page

ODD = "<b onload=x>\"'&{{ 1 }}{% raw %}\x1b[31m\u202eabc"
SHOWN = "&lt;b onload=x&gt;&#34;&#39;&amp;{{ 1 }}{% raw %}\\x1b[31m\\u202eabc"
PIXEL = Picture("data:image/png;base64,AA==", ODD, 1, 1, pixelated=True)
MACROS = "bars, code, figures, histogram, matrix, note, pictures, section, table"


@pytest.fixture
def drawn(tmp_path):
    """drawn(body, facts): the page of a template with this body."""

    def draw(body, title="page", **facts):
        template = tmp_path / "template.html"
        head = f'{{% extends "page.html" %}}{{% from "blocks.html" import {MACROS} %}}'
        template.write_text(f"{head}{{% block main %}}{body}{{% endblock %}}")
        return page_html(template, {"title": title, "lead": title, "made_by": title, **facts})

    return draw


@pytest.mark.parametrize(
    "block",
    [
        "figures([(odd, odd, odd), (1, 'a', '')])",
        "table([odd], [[odd], [none], [1.5]], odd, odd)",
        "bars([(odd, 3), (odd, 0)], odd, odd)",
        "histogram(bins, odd)",
        "matrix([odd, 'b'], [[1, 0], [0, 0]], odd)",
        "pictures([([pixel], [odd, '', odd])], odd, odd)",
        "note(odd, odd, warning=true)",
    ],
)
def test_every_text_is_escaped_and_controls_are_visible(drawn, block):
    bins = Histogram([(ODD, 3), ("b", 0)], ODD, ODD, ODD)
    html = drawn(f"{{{{ {block} }}}}", ODD, odd=ODD, bins=bins, pixel=PIXEL)
    for raw in ("<b onload", "\x1b", "\u202e", "&amp;lt;"):
        assert raw not in html
    assert html.count(SHOWN) > 4  # the title twice, the lead, the command


def test_code_keeps_its_lines_and_is_escaped(drawn):
    assert "a &lt;b&gt;\n  c</pre>" in drawn("{{ code(text) }}", text="a <b>\n  c")


def test_numbers_are_formatted_and_aligned_with_their_heading(drawn):
    names = ("first empty", "text", "mixed", "empty", "share")
    rows = [
        (None, "a", 1, None, Share(0.935)),
        (2.5, "b", "c", "", Share(1)),
        (12345, *"bc", "", None),
    ]
    html = drawn("{{ table(names, rows) }}", names=names, rows=rows)
    numbers = re.findall('<td class="number">(.*?)</td>', html)
    assert numbers == ["1", "93.5 %", "2.5", "100 %", "12,345"]
    headings = re.findall('<th scope="col"(.*?)>(.*?)</th>', html)
    assert [name for _, name in headings] == ["first empty", "text", "mixed", "share"]
    assert [bool(number) for number, _ in headings] == [True, False, False, True]


def test_a_bar_of_zero_has_no_width_and_a_small_one_can_be_seen(drawn):
    html = drawn("{{ bars(rows) }}", rows=[("none", 0), ("one", 1), ("most", 100_000)])
    assert re.findall('style="(width: .*?)"', html) == [
        "width: 0.00%",
        "width: 0.00%; min-width: 1px",
        "width: 100.00%; min-width: 1px",
    ]
    assert drawn("{{ bars(rows) }}", rows=[("none", 0)]).count("width: 0.00%") == 1


def test_a_path_where_no_file_can_be_made_is_refused_before_anything_is_read(tmp_path):
    check_page(str(tmp_path / "new" / "page.html"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        OptionError,
        match=r"cannot write /proc/page\.html: /proc: .*\. Give a file in another directory",
    ):
        check_page("/proc/page.html")


def test_what_is_folded_is_in_the_page_and_more_than_twelve_pictures_are_folded(drawn):
    pictures = [([PIXEL], [str(number)]) for number in range(15)]
    html = drawn(
        "{% call section() %}{{ pictures(items) }}{% endcall %}"
        "{% call section('rest', folded=true) %}{{ note('told') }}{% endcall %}"
        "{% call section('nothing') %} {% endcall %}",
        items=pictures,
    )
    assert html.count("<img ") == 15
    opened, folded = html.split("<summary>3 more</summary>")
    assert (opened.count("<img "), folded.count("<img ")) == (12, 3)
    assert re.search(
        r"<details><summary><h2>rest</h2></summary>.*told.*</details></section>", html, re.DOTALL
    )
    assert html.count("<h2>") == 1


def test_a_long_text_has_room_next_to_many_columns(drawn):
    html = drawn("{{ table(['text', 'a'], [[long, 'a']]) }}", long="word " * 9)
    assert html.count('<td class="long">word word') == html.count('class="long"') == 1


def test_a_page_appears_completely_on_a_disk_and_in_a_bucket(tmp_path, drawn, bucket, gcs_server):
    page = drawn("of one sentence")
    for path in (f"{tmp_path}/new/page.html", f"{bucket}/page.html"):
        assert write_page(path, page) == len(page)
    assert (tmp_path / "new/page.html").read_text() == page
    assert gcs_server.read(bucket.removeprefix("gs://"), "page.html").decode() == page


def test_a_page_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MOST_BYTES", 100)
    with pytest.raises(StorageError, match=r"page\.html would have .* more than 100 B"):
        write_page(f"{tmp_path}/page.html", "x" * 101)
    assert not list(tmp_path.iterdir())


def test_without_jinja2_the_error_names_the_command_that_installs_it(monkeypatch, drawn):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "jinja2":
            raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")
        return real(name, *args, **kwargs)

    pages._environment.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        OptionError, match=r"pages need jinja2\. Install it: pip install -e '.*\[pages\]'"
    ):
        drawn("")
