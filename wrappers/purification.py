"""The rule of SAAR as a pure function on conversations (arXiv 2601.15141, section "Similarity-Aware Adaptive Rollback").

A turn that failed and the turn that corrected it become one turn. Where the two pieces of code are similar the failed
turn's reasoning stays and only the code is swapped (a *shallow* replacement); where they differ the whole turn is swapped
(a *deep* one). A shallow replacement that would not be read as the correction's call, because the two turns mean something
else when they are put together, is made deep instead.

The failed call and the tool's message of its error are gone in both cases. The model's own words are kept as they are: the
reasoning that stays, and what a correction says behind its call, may speak of the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from numbers import Real
from typing import Literal

from cleaner_env.conversation import Completion, Conversation, Message, copy_conversation, splice
from cleaner_env.errors import ConfigError, UsageError
from cleaner_env.tool_calls import ParsedTurn, ToolFormat, get_tool_format
from cleaner_env.wrappers.similarity import Similarity, code_similarity, get_similarity

__all__ = ["Graft", "Purification", "Turn", "graft", "purify"]


@dataclass(frozen=True)
class Turn:
    """What the assistant said, and what became of it.

    Attributes:
        action: The assistant's text, a `Completion` where it was sampled.
        observation: The content of the tool message, ``None`` where the tool was not called or did not answer.
        tool_status: As in ``info`` (`cleaner_env.env`), ``None`` where the tool was not called.
        error_type: Likewise.
        seconds: Spent in ``step``, ``None`` where they were not measured.
    """

    action: str
    observation: str | None = None
    tool_status: str | None = None
    error_type: str | None = None
    seconds: float | None = None

    @property
    def messages(self) -> Conversation:
        """The turn as messages: the assistant's, and the tool's where it answered."""
        said = {"role": "assistant", "content": self.action}
        return (said,) if self.observation is None else (said, {"role": "tool", "content": self.observation})

    @property
    def tokens(self) -> int:
        """Tokens that the action was sampled as, 0 for a plain ``str``."""
        return len(self.action.token_ids) if isinstance(self.action, Completion) else 0


@dataclass(frozen=True)
class Graft:
    """What `graft` made of a failed turn and its correction.

    Attributes:
        action: What the assistant said, as purified.
        decision: ``"shallow"`` or ``"deep"``.
        similarity: Of the failed and the corrected code.
    """

    action: str
    decision: Literal["shallow", "deep"]
    similarity: float


@dataclass(frozen=True)
class Purification:
    """What `purify` made.

    Attributes:
        conversation: The history, followed by the purified turn.
        turn: The purified turn.
        decision: ``"shallow"`` or ``"deep"``.
        similarity: Of the failed and the corrected code.
    """

    conversation: Conversation
    turn: Turn
    decision: Literal["shallow", "deep"]
    similarity: float


def purify(
    history: Sequence[Message],
    failed: Turn,
    correction: Turn,
    threshold: float = 0.5,
    *,
    tool_format: str | ToolFormat = "hermes",
    similarity: str | Similarity = code_similarity,
) -> Purification:
    """Replaces a failed turn by its correction, as though the error had never happened.

    Args:
        history: The conversation before the failed turn; it comes back unchanged.
        failed: The turn whose call failed.
        correction: A later turn that calls the tool. Its observation must be what its code gives after ``history``.
        threshold: Similarity from which on the failed turn's reasoning is kept: 0 keeps it always, infinity never.
        tool_format: How calls are written.
        similarity: How pieces of code are compared: a name among `SIMILARITIES`, or a function. Where one of the calls does
            not parse, both are compared as they were written.

    Returns:
        The purified turn and conversation. Tokens follow their text, as `splice` describes.

    Raises:
        UsageError: One of the turns has no call.
        ConfigError: The threshold is no number of at least 0, no similarity or tool format has this name, or the function
            does not return a number in [0, 1].

    Example:
        >>> history = ({"role": "user", "content": "What is 6 * 7?"},)
        >>> failed = Turn("Multiply.\\n```python\\nprnt(6 * 7)\\n```", "NameError: name 'prnt' is not defined")
        >>> correction = Turn("A typo.\\n```python\\nprint(6 * 7)\\n```", "42")
        >>> purified = purify(history, failed, correction, tool_format="python")
        >>> purified.decision, purified.conversation[1]["content"], purified.conversation[2]["content"]
        ('shallow', 'Multiply.\\n```python\\nprint(6 * 7)\\n```', '42')
    """
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or isnan(threshold) or threshold < 0:
        raise ConfigError(f"threshold must be a number of at least 0, got {threshold!r:.80}")
    written = get_tool_format(tool_format)
    made = graft(*map(written.parse, (failed.action, correction.action)), threshold, written, get_similarity(similarity))
    turn = replace(correction, action=made.action)
    return Purification((*copy_conversation(history), *turn.messages), turn, made.decision, made.similarity)


def graft(old: ParsedTurn, new: ParsedTurn, threshold: float, tool_format: ToolFormat, similarity: Similarity) -> Graft:
    """Decides what stands for a failed turn and its correction; arguments and errors are those of `purify`."""
    if not old.has_call or not new.has_call:
        raise UsageError("purify needs a failed turn and a correction that both call the tool")
    compared = (old.call_text, new.call_text) if old.code is None or new.code is None else (old.code, new.code)
    score = similarity(*compared)
    if not isinstance(score, Real) or not 0 <= score <= 1:
        raise ConfigError(f"a similarity must be a number in [0, 1], got {score!r:.80} from {similarity!r:.80}")
    if score >= threshold:
        action = splice(old.text, old.call_start, new.text, new.call_start)
        joined = tool_format.parse(action)
        if (joined.call_start, joined.code, joined.malformed) == (old.call_start, new.code, new.malformed):
            return Graft(action, "shallow", float(score))
    action = new.text.as_graft() if isinstance(new.text, Completion) else new.text
    return Graft(action, "deep", float(score))
