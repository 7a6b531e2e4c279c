"""The flags of pages: what they refuse, before anything is evaluated."""

import pytest

from pipeline.errors import OptionError
from trainer.settings import Pages


@pytest.mark.parametrize("mode", ["predict", "export", "sample", "evaluate-continuously"])
def test_modes_without_a_page_refuse_a_report(mode):
    Pages().check(mode)
    with pytest.raises(OptionError, match=f"'out.html' with mode={mode}: only train, evaluate, look write a page"):
        Pages(report="out.html").check(mode)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"look_records": 0}, "look_records=0 must be at least 1"),
        ({"look_draws": -1}, "look_draws=-1 must be at least 1"),
        ({"look_records": 60}, "look_records=60 with look_draws=4: 300 pictures, .* at most 250. Reduce one of them."),
    ],
)
def test_a_page_has_at_least_one_record_and_not_too_many_pictures(fields, text):
    with pytest.raises(OptionError, match=text):
        Pages(**fields)


def test_a_directory_and_an_unknown_storage_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"is a directory. Give the name of a file in it: .*/page.html"):
        Pages(report=str(tmp_path)).check("evaluate")
    with pytest.raises(OptionError, match="storage s3:// is not supported"):
        Pages(report="s3://bucket/out.html").check("train")


def test_a_page_without_jinja2_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setattr("pipeline.pages.page.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pages need jinja2. Install it: pip install"):
        Pages().check("look")
    Pages().check("evaluate")
