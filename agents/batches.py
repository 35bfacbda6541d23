"""What a batch of training episodes is asked to be: which problems, which of their episodes are purified, which randomness.

Nothing is drawn from a stream that goes on from batch to batch: everything follows from the run's seed and the number of
the batch, so that a resumed run asks for the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from math import floor

import numpy as np

from cleaner_env.agents.episodes import Episode, EpisodeRequest
from cleaner_env.agents.grpo_config import GRPOConfig

__all__ = ["Purpose", "problem_indices", "random_stream", "telling_groups", "train_requests"]


class Purpose(IntEnum):
    """What a random stream is for: its second seed, after the run's."""

    TRAIN = 0
    EVALUATE = 1
    DATA = 2
    SHARE = 3
    MINIBATCHES = 4


def random_stream(seed: int, purpose: Purpose, *numbers: int) -> np.random.Generator:
    """Returns the stream of random numbers for a purpose, the same whenever it is asked for."""
    return np.random.default_rng((seed, purpose, *numbers))


def train_requests(
    config: GRPOConfig, batch: int, share: float, problems: int, first_group: int = 0
) -> list[EpisodeRequest]:
    """Returns the episodes of a batch, group by group.

    Args:
        config: The run's options.
        batch: The number of the batch, from 0.
        share: The share of purified episodes.
        problems: How many there are.
        first_group: The number of the first group.
    """
    size = config.rollout.group_size
    requests = []
    for group, index in enumerate(problem_indices(config.seed, batch, config.rollout.problems, problems)):
        rng = random_stream(config.seed, Purpose.SHARE, batch, group)
        purified = _purified_members(share, config.saar.mixing, size, rng)
        for member in range(size):
            stream = (config.seed, int(Purpose.TRAIN), batch, group, member)
            requests.append(EpisodeRequest(index, stream, first_group + group, saar=member in purified))
    return requests


def problem_indices(seed: int, batch: int, count: int, problems: int) -> list[int]:
    """Returns the problems of a batch: all problems in random order, then all again in another, and so on.

    Example:
        >>> sorted(problem_indices(0, 0, 2, 4) + problem_indices(0, 1, 2, 4))
        [0, 1, 2, 3]
    """
    indices = []
    for position in range(batch * count, (batch + 1) * count):
        epoch, offset = divmod(position, problems)
        indices.append(int(random_stream(seed, Purpose.DATA, epoch).permutation(problems)[offset]))
    return indices


def telling_groups(episodes: Iterable[Episode]) -> dict[int, list[Episode]]:
    """Returns the groups that say which of their episodes were better: those in which valid episodes differ in reward."""
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        if episode.valid:
            groups.setdefault(episode.request.group, []).append(episode)
    return {number: group for number, group in groups.items() if len({episode.reward for episode in group}) > 1}


def _purified_members(share: float, mixing: str, group_size: int, rng: np.random.Generator) -> set[int]:
    """Returns which episodes of a group are purified."""
    if mixing == "episode":
        return set(np.flatnonzero(rng.random(group_size) < share).tolist())
    return set(range(floor(share * group_size + rng.random())))
