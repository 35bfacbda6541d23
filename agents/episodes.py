"""Episodes as an agent asks for them and gets them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cleaner_env.conversation import Conversation
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import EpisodeRecord, describe_repair
from cleaner_env.wrappers.saar import Repair

__all__ = ["Episode", "EpisodeRequest"]


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to be run.

    Attributes:
        index: Index of the problem in the environment's data set.
        stream: Seeds everything random in the episode; two requests with equal streams and weights give equal episodes.
        group: Number of the group that it is compared with.
        saar: Whether it is purified; needs environments wrapped in `SAARWrapper` where true.
    """

    index: int
    stream: tuple[int, ...]
    group: int = 0
    saar: bool = False


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        request: What was asked for.
        conversation: The final history; of a purified episode, the purified one.
        raw_conversation: Everything that was said, in order.
        reward: The outcome reward.
        info: The last ``info`` of the environment, with the totals.
        sampled_tokens: Tokens sampled in all, hidden attempts included.
        repairs: What `SAARWrapper` did.
        turns: What was said, and what became of it.
        env_id: The registered environment.
        tool_format: How calls are written.
        masked_turns: Turns of ``conversation`` that are to be left out of the loss, counted among the assistant's.
        tries: How often it was begun; more than once where the infrastructure failed it.
    """

    request: EpisodeRequest
    conversation: Conversation
    raw_conversation: Conversation
    reward: float
    info: dict[str, Any]
    sampled_tokens: int
    repairs: tuple[Repair, ...] = ()
    turns: tuple[Turn, ...] = ()
    env_id: str | None = None
    tool_format: str | None = None
    masked_turns: tuple[int, ...] = ()
    tries: int = 1

    @property
    def valid(self) -> bool:
        """Whether the outcome is the model's own, and not that of a failing sandbox."""
        return bool(self.info["stop_condition"] != "infrastructure_error")

    def as_record(self, labels: Mapping[str, Any] | None = None, tokens: bool = False) -> dict[str, Any]:
        """Returns the episode as plain JSON values, in the schema of `cleaner_env.wrappers.records`.

        Args:
            labels: Keys of the caller's.
            tokens: Whether token ids and log-probabilities are kept.
        """
        said = [message["role"] == "assistant" for message in self.raw_conversation]
        stop = self.info["stop_condition"]
        return EpisodeRecord(
            env_id=self.env_id,
            tool_format=self.tool_format,
            problem_id=self.info["problem_id"],
            dataset=self.info["dataset"],
            stream=self.request.stream,
            purified=self.request.saar,
            start=self.raw_conversation[: said.index(True) if True in said else None],
            turns=self.turns,
            conversation=self.conversation,
            repairs=tuple(map(describe_repair, self.repairs)),
            reward=self.reward,
            terminated=stop == "answered",
            truncated=stop != "answered",
            info=self.info,
            labels={
                **(labels or {}),
                "index": self.request.index,
                "group": self.request.group,
                "sampled_tokens": self.sampled_tokens,
                "tries": self.tries,
            },
        ).as_json(tokens)
