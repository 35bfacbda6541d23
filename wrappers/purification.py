"""The rule of SAAR as a pure function on conversations (arXiv 2601.15141, section "Similarity-Aware Adaptive Rollback").

A turn that failed and the turn that corrected it become one turn. Where the two pieces of code are similar the failed
turn's reasoning stays and only the code is swapped (a *shallow* replacement); where they differ the whole turn is swapped
(a *deep* one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cleaner_env.conversation import Completion, Conversation, Message, copy_conversation, splice
from cleaner_env.errors import ConfigError
from cleaner_env.tool_calls import ToolFormat, get_tool_format
from cleaner_env.wrappers.similarity import Similarity, code_similarity, get_similarity

__all__ = ["Purification", "Turn", "purify"]


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
        ValueError: One of the turns has no call.
        ConfigError: No similarity or tool format has this name, or the function does not return a number in [0, 1].

    Example:
        >>> history = ({"role": "user", "content": "What is 6 * 7?"},)
        >>> failed = Turn("Multiply.\\n```python\\nprnt(6 * 7)\\n```", "NameError: name 'prnt' is not defined")
        >>> correction = Turn("A typo.\\n```python\\nprint(6 * 7)\\n```", "42")
        >>> purified = purify(history, failed, correction, tool_format="python")
        >>> purified.decision, purified.conversation[1]["content"], purified.conversation[2]["content"]
        ('shallow', 'Multiply.\\n```python\\nprint(6 * 7)\\n```', '42')
    """
    parser = get_tool_format(tool_format)
    old, new = parser.parse(failed.action), parser.parse(correction.action)
    if not old.has_call or not new.has_call:
        raise ValueError("purify needs a failed turn and a correction that both call the tool")
    compared = (old.call_text, new.call_text) if old.code is None or new.code is None else (old.code, new.code)
    score = get_similarity(similarity)(*compared)
    if not isinstance(score, (int, float)) or not 0 <= score <= 1:
        raise ConfigError(f"a similarity must be a number in [0, 1], got {score!r:.80} from {similarity!r:.80}")
    if score >= threshold:
        action = splice(failed.action, old.call_start, correction.action, new.call_start)
    else:
        action = correction.action.as_graft() if isinstance(correction.action, Completion) else correction.action
    turn = replace(correction, action=action)
    return Purification(
        conversation=(*copy_conversation(history), *turn.messages),
        turn=turn,
        decision="shallow" if score >= threshold else "deep",
        similarity=score,
    )
