"""Counts of the tool calls of an episode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EpisodeTotals"]


@dataclass
class EpisodeTotals:
    """What was really executed in an episode, whatever its history was rewritten to.

    The fields are described in `cleaner_env.env`.

    Example:
        >>> totals = EpisodeTotals()
        >>> totals.record("NameError")
        >>> totals.record(None)
        >>> totals.first_attempt_total, totals.first_attempt_success, totals.recovered_errors
        (1, 0, 1)
    """

    tool_calls: int = 0
    tool_errors: int = 0
    first_attempt_total: int = 0
    first_attempt_success: int = 0
    recovered_errors: int = 0
    tool_failure_reasons: Counter[str] = field(default_factory=Counter)
    last_call_failed: bool = False

    def record(self, error_type: str | None) -> None:
        """Counts a call that failed with an error of this kind, or ran (``None``)."""
        self.tool_calls += 1
        if self.last_call_failed:
            self.recovered_errors += error_type is None
        else:
            self.first_attempt_total += 1
            self.first_attempt_success += error_type is None
        self.last_call_failed = error_type is not None
        if error_type is not None:
            self.tool_errors += 1
            self.tool_failure_reasons[error_type] += 1

    def as_info(self) -> dict[str, Any]:
        """Returns the totals as keys of ``info``."""
        return {
            "tool_calls": self.tool_calls,
            "tool_errors": self.tool_errors,
            "first_attempt_total": self.first_attempt_total,
            "first_attempt_success": self.first_attempt_success,
            "recovered_errors": self.recovered_errors,
            "tool_failure_reasons": dict(self.tool_failure_reasons),
        }
