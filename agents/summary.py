"""What a set of episodes comes to, in numbers that belong together.

An error rate means little by itself: a policy that no longer calls the tool makes no errors. So the numbers are kept in one
place, and reports show error rates next to success and calls per episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cleaner_env.agents.episodes import Episode

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Rates and means over episodes; those that the infrastructure failed are counted and otherwise left out.

    Attributes:
        episodes: Episodes that the other numbers are about.
        infrastructure_errors: Episodes left out, because a sandbox failed and not the model.
        success: Share of episodes whose answer is correct; ``None`` where there is no episode.
        reward: Mean reward; ``None`` likewise.
        no_answer: Episodes that ended without an answer.
        first_attempt_error: Share of first attempts that failed, a first attempt being a call that does not follow a failed
            one; ``None`` where there was no call.
        recovered: Share of failed calls whose next call ran; ``None`` where no call failed.
        tool_calls: Calls per episode, malformed and hidden ones included; ``None`` where there is no episode.
        turns: Turns per episode in the final history; ``None`` likewise.
        tokens: Sampled tokens per episode, hidden attempts included; ``None`` likewise.
        stop_conditions: How often each ``info["stop_condition"]`` occurred.
        tool_failure_reasons: How often each kind of tool error occurred.
    """

    episodes: int
    infrastructure_errors: int
    success: float | None
    reward: float | None
    no_answer: int
    first_attempt_error: float | None
    recovered: float | None
    tool_calls: float | None
    turns: float | None
    tokens: float | None
    stop_conditions: Mapping[str, int]
    tool_failure_reasons: Mapping[str, int]


def summarise(episodes: Sequence[Episode]) -> Summary:
    """Sums episodes up."""
    valid = [episode for episode in episodes if episode.valid]
    infos = [episode.info for episode in valid]
    reasons: Counter[str] = Counter()
    for info in infos:
        reasons.update(info["tool_failure_reasons"])
    first_attempts = sum(info["first_attempt_total"] for info in infos)
    first_successes = sum(info["first_attempt_success"] for info in infos)
    return Summary(
        episodes=len(valid),
        infrastructure_errors=len(episodes) - len(valid),
        success=_ratio(sum(info["verdict"] == "correct" for info in infos), len(valid)),
        reward=_ratio(sum(episode.reward for episode in valid), len(valid)),
        no_answer=sum(info["verdict"] == "no_answer" for info in infos),
        first_attempt_error=_ratio(first_attempts - first_successes, first_attempts),
        recovered=_ratio(sum(info["recovered_errors"] for info in infos), sum(info["tool_errors"] for info in infos)),
        tool_calls=_ratio(sum(info["tool_calls"] for info in infos), len(valid)),
        turns=_ratio(sum(info["num_turns"] for info in infos), len(valid)),
        tokens=_ratio(sum(episode.sampled_tokens for episode in valid), len(valid)),
        stop_conditions=dict(Counter(episode.info["stop_condition"] for episode in episodes)),
        tool_failure_reasons=dict(reasons.most_common()),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
