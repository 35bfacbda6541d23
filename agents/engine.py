"""What an agent asks of the program that runs its language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["Engine", "Sampling"]


@dataclass(frozen=True)
class Sampling:
    """How a turn is sampled.

    Attributes:
        max_tokens: Most tokens of one turn, the end-of-turn token included.
        temperature: Divides the logits; 0 is greedy.
        top_p: Nucleus kept, in (0, 1]. Log-probabilities are always those before it is applied.
        stop: Strings that end a turn once its text contains one; the string stays in the turn.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens!r}")
        if self.temperature < 0:
            raise ConfigError(f"temperature must not be negative, got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p!r}")


class Engine(Protocol):
    """Generates turns and scores token sequences, in batches."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        generators: Sequence[np.random.Generator] | None = None,
    ) -> list[Completion]:
        """Samples one turn for each prompt. May be called by several threads at a time.

        Args:
            prompts: Token ids of each prompt, at least one id each.
            sampling: How to sample.
            generators: One random stream per prompt, so that a row does not depend on its batch; needed unless greedy.

        Returns:
            One `Completion` per prompt. Its log-probabilities are at the sampling temperature (at 1 where greedy), before
            top-p.
        """

    def logprobs(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], temperature: float = 1.0
    ) -> list[list[float]]:
        """Scores the ends of sequences.

        Args:
            sequences: Token ids, prompt and turn together.
            starts: For each sequence, the index (at least 1) of the first token to score.
            temperature: Divides the logits.

        Returns:
            For each sequence the log-probabilities of ``sequence[start:]``, each given all tokens before it.
        """

    def update_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replaces the weights; the next request sees the new ones."""
