"""What single turns of an episode are credited with, beside the episode's own advantage.

Both are controls for purification: ways to learn from a failed first attempt that leave the history as it was, or that add
the failure which purification took away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cleaner_env.agents.episodes import Episode
from cleaner_env.agents.rendering import RenderedConversation, Renderer
from cleaner_env.conversation import Completion
from cleaner_env.tool_calls import get_tool_format
from cleaner_env.wrappers.saar import Repair

__all__ = ["GatedPair", "failed_first_attempts", "gated_pairs"]


@dataclass(frozen=True)
class GatedPair:
    """A failed first attempt and the turn that replaced it.

    Attributes:
        failed: The history before both, and the failed attempt; its action mask is true for the tokens of the call, or of
            the whole attempt where it is not known which they are.
        replaced_turn: The number of the turn in the episode's conversation, counted among the assistant's.
    """

    failed: RenderedConversation
    replaced_turn: int


def failed_first_attempts(episode: Episode) -> list[int]:
    """Returns the turns whose call failed and did not follow a failed one, counted among the assistant's.

    There are none where the episode did not succeed, so that a model is not taught to leave the tool alone, and none where
    its history was rewritten.
    """
    if not _succeeded(episode) or episode.conversation != episode.raw_conversation:
        return []
    failed = [turn.error_type is not None for turn in episode.turns]
    return [number for number, now in enumerate(failed) if now and not (number and failed[number - 1])]


def gated_pairs(episode: Episode, renderer: Renderer) -> list[GatedPair]:
    """Returns a pair for every repair that replaced a failed turn, in an episode that succeeded.

    The failed attempt was sampled at the very history that its replacement now stands behind, so that learning from it is
    on-policy.
    """
    if not _succeeded(episode):
        return []
    return [
        GatedPair(_failed_call(episode, repair, renderer), repair.turn_before)
        for repair in episode.repairs
        if repair.purified is not None
    ]


def _succeeded(episode: Episode) -> bool:
    return bool(episode.info["verdict"] == "correct")


def _failed_call(episode: Episode, repair: Repair, renderer: Renderer) -> RenderedConversation:
    said = repair.failures[0].action
    row = renderer.render((*repair.history, {"role": "assistant", "content": said}))
    start = row.turn_starts[-1]
    in_call = [True] * (len(row.token_ids) - start)
    if isinstance(said, Completion) and episode.tool_format is not None:
        call_start = get_tool_format(episode.tool_format).parse(said).call_start
        ends = (*said.offsets[1:], len(said))
        in_call = [end > call_start for end in ends] + [False] * (len(in_call) - len(ends))
    mask = (
        inside and action and token not in renderer.end_ids
        for inside, action, token in zip(in_call, row.action_mask[start:], row.token_ids[start:], strict=True)
    )
    return replace(row, action_mask=(False,) * start + tuple(mask))
