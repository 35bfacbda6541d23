"""Purification of whole episodes, without an environment: when the rule of `purify` is applied, and to what.

An episode is purified turn by turn. A call that fails freezes the history before it; the agent sees the error, the
*lookahead*, and its next turn is taken as a correction. When that runs, it replaces the failed turn; when it fails too, it
replaces the failed turn at once and the agent sees the newer error, up to ``max_retries`` times. Corrections, and the error
they correct, cost no turns: a purified turn counts once.

What else can happen has a defined outcome:

=======================================  ============================================================================
a turn                                   outcome
=======================================  ============================================================================
makes two calls, one that is not closed  it failed like any other (``"malformed"``); as a correction too. Its call is the
(cut off by the token limit, say) or     text from where the first call begins, so a shallow replacement keeps the
does not parse                           reasoning before that
has a call inside thinking only          it has no call: an answer
has an answer and a call                 it is a call; the answer is part of its reasoning
answers instead of correcting            the error stays and purification ends (``"abandoned"``). Where the error spent the
                                         last turn of the budget, the answer came too late and is not part of the history
is the last correction allowed and fails the latest failure stays and purification ends (``"failed"``)
meets an outage of the sandbox           the episode ends; a repair under way has no outcome, nor has one that the end of
                                         the agent's context cuts short
=======================================  ============================================================================

For ablations other strategies share the interface:

===========  ====================================================================================================
strategy     what becomes of a call that failed
===========  ====================================================================================================
``saar``     it is replaced, shallowly or deeply by the similarity of the two pieces of code
``shallow``  it is replaced, and its reasoning stays wherever the correction's call can be put behind it
``deep``     it is replaced together with its reasoning, always
``mask``     it stays, and its turn is left out of the loss (`Purifier.masked_turns`)
``none``     it stays
===========  ====================================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Real
from operator import index
from typing import Any, Final, Literal, SupportsIndex

from cleaner_env.conversation import Conversation, copy_conversation
from cleaner_env.env import MALFORMED
from cleaner_env.errors import ConfigError
from cleaner_env.tool_calls import ToolFormat, get_tool_format
from cleaner_env.wrappers.purification import Graft, Turn, graft
from cleaner_env.wrappers.similarity import Similarity, code_similarity, get_similarity

__all__ = ["MODEL_ERRORS", "OUTCOMES", "STRATEGIES", "PurificationRule", "Purifier", "Repair", "purify_episode"]

MODEL_ERRORS: Final = frozenset({"error", "exit", "timeout", "oom", "output_limit", "killed", MALFORMED})
"""The values of ``tool_status`` that are the model's own doing. An infrastructure error is none of them."""

Outcome = Literal["shallow", "deep", "failed", "abandoned"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("shallow", "deep", "failed", "abandoned")
STRATEGIES: Final = ("saar", "shallow", "deep", "mask", "none")


@dataclass(frozen=True)
class PurificationRule:
    """What is purified, and how.

    Attributes:
        strategy: One of `STRATEGIES`.
        similarity_threshold: Similarity in [0, 1] from which on a replacement is shallow. The paper uses 0.5.
        max_retries: Corrections tried for one error. The paper uses 3.
        similarity: How pieces of code are compared: a name among `cleaner_env.wrappers.similarity.SIMILARITIES`, or a
            function.
        on_errors: The values of ``tool_status`` that count as failed.

    Raises:
        ConfigError: A value is out of range.
    """

    strategy: str = "saar"
    similarity_threshold: float = 0.5
    max_retries: int = 3
    similarity: str | Similarity = code_similarity
    on_errors: Collection[str] = MODEL_ERRORS

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r:.80}")
        # Numbers of NumPy's become Python's, so that they can be written as JSON.
        object.__setattr__(self, "similarity_threshold", checked_share("similarity_threshold", self.similarity_threshold))
        retries = self.max_retries
        if isinstance(retries, bool) or not isinstance(retries, SupportsIndex) or index(retries) < 0:
            raise ConfigError(f"max_retries must be an int of at least 0, got {retries!r}")
        object.__setattr__(self, "max_retries", index(retries))
        get_similarity(self.similarity)
        if isinstance(self.on_errors, str) or not isinstance(self.on_errors, Collection):
            raise ConfigError(
                f"on_errors must be a collection of names among {sorted(MODEL_ERRORS)}, got {self.on_errors!r:.80}"
            )
        unknown = [name for name in self.on_errors if not isinstance(name, str) or name not in MODEL_ERRORS]
        if unknown:
            raise ConfigError(f"on_errors must be among {sorted(MODEL_ERRORS)}, got {unknown!r:.80}")

    @property
    def replaces(self) -> bool:
        """Whether failed turns are replaced at all."""
        return self.strategy in ("saar", "shallow", "deep") and self.max_retries > 0

    @property
    def threshold(self) -> float:
        """The threshold of `purify` that makes the strategy's choice."""
        return {"shallow": 0.0, "deep": inf}.get(self.strategy, self.similarity_threshold)


def checked_share(name: str, value: float) -> float:
    """Returns an argument that has to be a number in [0, 1], as a `float`.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name} must be a number in [0, 1], got {value!r:.80}")
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie in [0, 1], got {value!r:.80}")
    return float(value)


@dataclass
class Repair:
    """One error and what became of it.

    Attributes:
        history: The frozen conversation before the failed turn.
        failures: The failed turns as they were written: the first attempt, then each failed correction.
        current: The failed turn that stands in the lookahead, corrections having been grafted onto it.
        turn_before: Assistant turns in ``history``.
        correction: The correction that ran, as it was written.
        purified: The turn that replaced the failed one.
        similarity: Of the last comparison.
        outcome: How the repair ended, ``None`` while it goes on or where the episode ended first.
        logprob_gap: ``log pi(graft | context it was sampled in) - log pi(graft | purified context)`` in nats, summed over
            the tokens of the purified turn that were moved; ``None`` until an agent measures it.
    """

    history: Conversation
    failures: list[Turn]
    current: Turn
    turn_before: int
    correction: Turn | None = None
    purified: Turn | None = None
    similarity: float | None = None
    outcome: Outcome | None = None
    logprob_gap: float | None = None

    @property
    def attempts(self) -> int:
        """Corrections tried."""
        return len(self.failures) - 1 + (self.correction is not None)

    @property
    def lookahead(self) -> Conversation:
        """The conversation that shows the agent the latest failure."""
        return (*self.history, *self.current.messages)

    @property
    def written(self) -> tuple[Turn, ...]:
        """Every turn that the repair took up, as it was written."""
        return (*self.failures, self.correction) if self.correction else tuple(self.failures)

    @property
    def hidden_tokens(self) -> int:
        """Sampled tokens that do not stand in the history any more."""
        return sum(turn.tokens for turn in self.written) - (self.purified or self.current).tokens

    @property
    def seconds(self) -> float | None:
        """Spent in ``step`` on all turns of the repair, ``None`` where they were not measured."""
        seconds = [turn.seconds for turn in self.written if turn.seconds is not None]
        return sum(seconds) if seconds else None


@dataclass
class Purifier:
    """An episode that is being purified: feed it every turn with `take`, and read `conversation`.

    Attributes:
        start: The messages that the episode began with.
        tool_format: How calls are written.
        rule: What is purified, and how.
        enabled: Whether failed turns are still replaced (or masked); turns false when a repair fails or is given up.
        history: The purified conversation, without a failure that is being repaired.
        turn: Assistant turns that count in ``history``.
        turns: Everything that was said, in order.
        repair: The repair under way.
        repairs: Every repair, in order, finished or not.
        masked_turns: The turns of ``history`` that are to be left out of the loss, counted from 0 among the assistant's.
        phase: ``"idle"``, ``"lookahead"`` or the outcome of a repair that the latest turn ended.
        late_tokens: Sampled tokens of an answer that came too late to stand in the history.
    """

    start: Conversation
    tool_format: ToolFormat
    rule: PurificationRule
    enabled: bool = True
    history: Conversation = ()
    turn: int = 0
    turns: list[Turn] = field(default_factory=list)
    repair: Repair | None = None
    repairs: list[Repair] = field(default_factory=list)
    masked_turns: list[int] = field(default_factory=list)
    phase: str = "idle"
    late_tokens: int = 0

    def __post_init__(self) -> None:
        self.start = self.history = copy_conversation(self.start)

    @property
    def conversation(self) -> Conversation:
        """What the agent sees: the history, with the latest failure where that is being repaired."""
        return self.repair.lookahead if self.repair else self.history

    @property
    def raw_conversation(self) -> Conversation:
        """Everything that was said, in order: failed calls, errors and corrections included."""
        return (*copy_conversation(self.start), *(message for turn in self.turns for message in turn.messages))

    @property
    def hidden_tokens(self) -> int:
        """Sampled tokens that no longer stand in the history."""
        return self.late_tokens + sum(repair.hidden_tokens for repair in self.repairs)

    def consider(self, action: str) -> Graft | None:
        """Returns what a correction of the failure under repair would make of it; ``None`` for an action that is none.

        It changes nothing and needs no observation: where code cannot be compared, that shows before the turn is taken.
        """
        if self.repair is None:
            return None
        correction = self.tool_format.parse(action)
        if not correction.has_call:
            return None
        failed = self.tool_format.parse(self.repair.current.action)
        return graft(failed, correction, self.rule.threshold, self.tool_format, get_similarity(self.rule.similarity))

    def give_up(self) -> None:
        """Lets the failure stand, before a turn that answers instead of correcting it and counts as the one after it."""
        self._close("abandoned")

    def answer_too_late(self, action: str) -> None:
        """Takes an answer that the budget has no turn for: it was said, and stands in no history."""
        turn = Turn(action)
        self.turns.append(turn)
        self.late_tokens += turn.tokens

    def end(self) -> None:
        """Ends the episode from outside. A failure that is being repaired stays; its repair has no outcome."""
        self.phase = "idle"
        if self.repair is not None:
            self._close(None)

    def take(self, turn: Turn, made: Graft | None = None) -> None:
        """Takes the next turn: a step, a failure to repair, or a correction together with what `consider` made of it."""
        self.turns.append(turn)
        failed = turn.tool_status in self.rule.on_errors
        if self.repair is not None and made is not None and turn.observation is not None:
            self._correct(self.repair, turn, made)
        elif self.repair is None and failed and self.enabled and self.rule.replaces:
            self.repair = Repair(self.history, [turn], turn, self.turn)
            self.repairs.append(self.repair)
            self.phase = "lookahead"
        else:
            self._append(turn, failed)

    def _append(self, turn: Turn, failed: bool) -> None:
        if self.repair is not None:
            self.end()
        elif self.phase != "abandoned":
            self.phase = "idle"
        if failed and self.enabled and self.rule.strategy == "mask":
            self.masked_turns.append(self.turn)
        self.history = (*self.history, *turn.messages)
        self.turn += 1

    def _correct(self, repair: Repair, turn: Turn, made: Graft) -> None:
        repair.similarity = made.similarity
        purified = replace(turn, action=made.action)
        if turn.tool_status == "ok":
            repair.correction, repair.purified = turn, purified
            self._close(made.decision)
            return
        repair.failures.append(turn)
        repair.current = purified
        if repair.attempts >= self.rule.max_retries:
            self._close("failed")

    def _close(self, outcome: Outcome | None) -> None:
        repair, self.repair = self.repair, None
        assert repair is not None
        repair.outcome = outcome
        self.history = (*repair.history, *(repair.purified or repair.current).messages)
        self.turn = repair.turn_before + 1
        self.enabled = outcome in ("shallow", "deep")
        self.phase = outcome or "idle"

    def as_info(self) -> dict[str, Any]:
        """Returns ``info["saar"]``, whose keys `cleaner_env.wrappers.saar` describes."""
        outcomes = Counter(repair.outcome for repair in self.repairs)
        latest = self.repairs[-1] if self.repairs and self.phase != "idle" else None
        return {
            "enabled": self.enabled and self.rule.replaces,
            "phase": self.phase,
            "attempts": latest.attempts if latest else 0,
            "similarity": latest.similarity if latest else None,
            **{outcome: outcomes[outcome] for outcome in OUTCOMES},
            "masked": len(self.masked_turns),
            "hidden_tokens": self.hidden_tokens,
        }


def purify_episode(
    start: Conversation,
    turns: Iterable[Turn],
    rule: PurificationRule | None = None,
    *,
    tool_format: str | ToolFormat = "hermes",
    max_turns: float = inf,
    out_of_time: bool = False,
) -> Purifier:
    """Purifies an episode that was played already, as `SAARWrapper` would have while it was played.

    No code runs: a failed call left nothing behind in the sandbox, so what a later call gave is what it would have given
    without the failure. What the agent said is taken as it is, though under another rule it would have seen, and might have
    said, something else.

    Args:
        start: The messages that the episode began with.
        turns: Everything that was said after them, failed calls included.
        rule: What is purified, and how; the paper's rule by default.
        tool_format: How calls are written.
        max_turns: Assistant turns after which the episode is over, as in the environment. What was said after that is
            dropped.
        out_of_time: Whether the budget of seconds ended the episode, so that an answer came too late.

    Returns:
        The purified episode. Where it breaks off at a failure, that is still under repair.

    Raises:
        ConfigError: No tool format has this name.

    Example:
        >>> start = ({"role": "user", "content": "What is 6 * 7?"},)
        >>> failed = Turn("Multiply.\\n```python\\nprnt(6 * 7)\\n```", "NameError: name 'prnt' is not defined", "error")
        >>> correction = Turn("A typo.\\n```python\\nprint(6 * 7)\\n```", "42", "ok")
        >>> turns = failed, correction, Turn("42.")
        >>> episode = purify_episode(start, turns, tool_format="python")
        >>> [message["content"] for message in episode.conversation[1:]]
        ['Multiply.\\n```python\\nprint(6 * 7)\\n```', '42', '42.']
        >>> episode.repairs[0].outcome, episode.repairs[0].similarity
        ('shallow', 0.9565217391304348)
        >>> mask = PurificationRule(strategy="mask")
        >>> purify_episode(start, turns, mask, tool_format="python").masked_turns
        [0]
    """
    purifier = Purifier(start, get_tool_format(tool_format), rule or PurificationRule())
    for turn in turns:
        late = out_of_time and turn.tool_status is None
        if purifier.repair is None and (late or purifier.turn >= max_turns):
            break
        made = purifier.consider(turn.action)
        if purifier.repair is not None and made is None:
            purifier.give_up()
            if late or purifier.turn >= max_turns:
                purifier.answer_too_late(turn.action)
                break
        purifier.take(turn, made)
    return purifier
