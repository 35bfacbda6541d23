"""Parts of LiveCodeBench, by contest date or by the release that added a problem, and its known faults."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Problem
from cleaner_env.tasks.loading import MakeProblem, Row

__all__ = ["ERRATA", "Selection"]

ERRATA: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "abc311_c",
            "abc326_d",
            "abc327_b",
            "abc333_e",
            "abc343_e",
            "abc362_c",
            "find-words-containing-character",
            "find-the-peaks",
            "generate-binary-strings-without-adjacent-zeros",
        ),
        "several outputs are right, and the tests accept one",
    ),
    **dict.fromkeys(("abc337_e", "abc355_e"), "interactive, and the tests cannot talk"),
    "abc350_c": "the tests are wrong",
}
"""Problems with faults that LiveCodeBench's authors list (ERRATA.md), by id or by title in lower case with hyphens."""

_RELEASES: Final = re.compile(r"v([1-9])(?:\.\.v([1-9]))?")


@dataclass(frozen=True)
class Selection:
    """A part of a data set.

    Attributes:
        first: The first contest date, ``None`` where the part is of releases.
        last: The last contest date, included.
        files: Which of a data set's files to read; each release added one.
    """

    first: date | None
    last: date | None
    files: slice = field(default_factory=lambda: slice(None))

    @classmethod
    def parse(cls, dataset: str, text: str, releases: int) -> Selection:
        """Reads ``2025-02-01..2025-05-31``, ``v6`` or ``v5..v6``.

        Args:
            dataset: The data set's name, for messages.
            text: The part.
            releases: How many releases the data set is of, 0 where its rows do not say.

        Raises:
            DataError: The part is something else, runs backwards, or is of a release that the data set does not hold.
        """
        match = _RELEASES.fullmatch(text)
        if match and releases:
            start, stop = int(match[1]), int(match[2] or match[1])
            if not 1 <= start <= stop <= releases:
                raise DataError(f"dataset {dataset!r} has the releases v1..v{releases}, got {text!r}")
            return cls(None, None, slice(start - 1, stop))
        left, dots, right = text.partition("..")
        try:
            first, last = date.fromisoformat(left), date.fromisoformat(right)
        except ValueError:
            dots = ""
        if not dots:
            parts = "a window of dates such as 2025-02-01..2025-05-31" + (
                ", or releases such as v5..v6" if releases else ""
            )
            raise DataError(f"dataset {dataset!r} has no part {text!r}; give {parts}")
        if first > last:
            raise DataError(f"the window {text!r} ends before it begins")
        return cls(first, last)

    def filter(self, make_problem: MakeProblem) -> MakeProblem:
        """Returns a function that leaves out the rows of other dates."""
        if self.first is None or self.last is None:
            return make_problem
        first, last = self.first, self.last

        def within(row: Row, identifier: str) -> Problem | str:
            text = row.text("the contest date", "contest_date")
            try:
                day = date.fromisoformat(text[:10])
            except ValueError:
                raise row.error(f"contest_date must begin with a date such as 2025-02-01, got {text[:40]!r}") from None
            return make_problem(row, identifier) if first <= day <= last else "its contest is outside of the window"

        return within
