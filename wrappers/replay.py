"""Purifies recorded episodes anew, without a model or a sandbox."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from cleaner_env.errors import ConfigError, DataError
from cleaner_env.tool_calls import TOOL_FORMATS
from cleaner_env.wrappers.purifier import PurificationRule, purify_episode
from cleaner_env.wrappers.records import EpisodeRecord, describe_repair

__all__ = ["Change", "ReplayReport", "replay_episode"]


def replay_episode(record: EpisodeRecord, rule: PurificationRule) -> EpisodeRecord:
    """Returns a recorded episode as it would stand, had it been purified by another rule.

    See `purify_episode` for what that takes for granted. The outcome and the totals stay those that were recorded.

    Args:
        record: An episode that was purified while it was recorded, or one that was not.
        rule: What is purified, and how.

    Raises:
        DataError: The record does not say how calls are written, or in a way that is not known here, or contradicts itself.

    Example:
        >>> from cleaner_env.wrappers.purification import Turn
        >>> failed, correction = (f"```python\\n{code}\\n```" for code in ("x", "x = 1"))
        >>> turns = Turn(failed, "NameError", "error"), Turn(correction, "", "ok"), Turn("One.")
        >>> record = EpisodeRecord("p-1", "exam", start=(), turns=turns, conversation=(), tool_format="python")
        >>> replay_episode(record, PurificationRule(similarity_threshold=0.6)).repairs[0]["outcome"]
        'deep'
    """
    if record.tool_format not in TOOL_FORMATS:
        raise DataError(
            f"episode {record.problem_id!r:.60} writes calls in the format {record.tool_format!r:.60}, which is none of "
            f"{', '.join(TOOL_FORMATS)}; only those can be replayed"
        )
    stop, turns = (record.info.get(name) for name in ("stop_condition", "num_turns"))
    max_turns = turns if stop == "max_turns" and isinstance(turns, int) else inf
    try:
        purifier = purify_episode(
            record.start,
            record.turns,
            rule,
            tool_format=record.tool_format,
            max_turns=max_turns,
            out_of_time=stop == "time_limit",
        )
    except ConfigError:
        raise
    except ValueError:
        raise DataError(f"episode {record.problem_id!r:.60} has a turn that failed without calling the tool") from None
    if purifier.repair is not None and record.finished:
        purifier.end()
    return replace(
        record,
        purified=rule.replaces,
        conversation=purifier.conversation,
        repairs=tuple(map(describe_repair, purifier.repairs)),
        info={**record.info, "saar": purifier.as_info()},
    )


@dataclass(frozen=True)
class Change:
    """A failed call of which a replay made something else.

    Attributes:
        problem_id: The episode's.
        turn: The call's place among everything the assistant said, counted from 0.
        before: The outcome of its repair as recorded, ``"kept"`` where there was none.
        after: The same as replayed.
        similarity: Of the last comparison in the replay, or else in the record.
    """

    problem_id: str | None
    turn: int
    before: str
    after: str
    similarity: float | None


@dataclass
class ReplayReport:
    """What replaying episodes changed.

    Attributes:
        episodes: Episodes seen.
        episodes_changed: Those whose history is another one now.
        before: Repairs by outcome, as recorded.
        after: The same as replayed.
        changes: Failed calls of which something else became, by the outcomes before and after.
        examples: The first few changes.
        keep: Most examples.
    """

    episodes: int = 0
    episodes_changed: int = 0
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[Change] = field(default_factory=list)
    keep: int = 10

    def add(self, recorded: EpisodeRecord, replayed: EpisodeRecord) -> None:
        """Counts an episode."""
        self.episodes += 1
        self.episodes_changed += recorded.conversation != replayed.conversation
        before, after = _repairs_by_raw_turn(recorded), _repairs_by_raw_turn(replayed)
        self.before.update(_outcome(repair) for repair in before.values())
        self.after.update(_outcome(repair) for repair in after.values())
        for turn in sorted(before.keys() | after.keys()):
            pair = _outcome(before.get(turn)), _outcome(after.get(turn))
            if pair[0] == pair[1]:
                continue
            self.changes[pair] += 1
            if len(self.examples) < self.keep:
                similarity = (after.get(turn) or before[turn])["similarity"]
                self.examples.append(Change(recorded.problem_id, turn, *pair, similarity))

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        return {
            "episodes": self.episodes,
            "episodes_changed": self.episodes_changed,
            "before": dict(self.before),
            "after": dict(self.after),
            "changes": [{"before": a, "after": b, "count": count} for (a, b), count in self.changes.most_common()],
            "examples": [vars(change) for change in self.examples],
        }


def _outcome(repair: dict[str, Any] | None) -> str:
    return "kept" if repair is None else repair["outcome"] or "unfinished"


def _repairs_by_raw_turn(record: EpisodeRecord) -> dict[int, dict[str, Any]]:
    """Repairs by the place of their failed call among everything that was said."""
    repairs = {}
    hidden = 0
    for repair in record.repairs:
        repairs[repair["turn"] + hidden] = repair
        hidden += repair["raw_turns"] - 1
    return repairs
