"""The pages that a recipe's command writes, as flags. Stdlib only, so that --help appears immediately."""

from dataclasses import dataclass

from pipeline.errors import OptionError

__all__ = ["Pages"]

MOST_PICTURES = 250  # of 64x64 pixels, so that a page stays below 5 MB
WRITTEN_BY = ("train", "evaluate", "look")


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What the pages show, and where they are written: a field of a recipe, whose fields become flags."""

    report: str | None = None
    """Write a page about the evaluation to this file, such as report.html; may be gs://... It shows metrics and their
    proof, mistakes by class, and the worst records. With --mode train, the page is about the evaluation at the end.
    With --mode look, this is where its page is written (default: <workdir>/look.html)."""
    look_records: int = 16
    """Records that --mode look shows, spread evenly over the training data."""
    look_draws: int = 4
    """Epochs in which --mode look shows each of them."""

    def __post_init__(self) -> None:
        for name in ("look_records", "look_draws"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)} must be at least 1.")
        if (pictures := self.look_records * (self.look_draws + 1)) > MOST_PICTURES:
            raise OptionError(
                f"look_records={self.look_records} with look_draws={self.look_draws}: {pictures} pictures, as each "
                f"record is also shown as stored. A page has at most {MOST_PICTURES}. Reduce one of them."
            )

    def check(self, mode: str) -> None:
        """Raises OptionError for a mode that writes no page, and for what would prevent writing it, hours later."""
        if self.report is None and mode != "look":
            return
        if mode not in WRITTEN_BY:
            raise OptionError(
                f"report={self.report!r} with mode={mode}: only {', '.join(WRITTEN_BY)} write a page. Leave it out."
            )
        from pipeline.pages.page import check_page

        check_page(self.report)
