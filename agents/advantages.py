"""Advantages: how much better than the other episodes of its group each episode was."""

from __future__ import annotations

from collections.abc import Sequence

from cleaner_env.agents.grpo_config import AdvantageConfig

__all__ = ["group_advantages", "overlong_penalty"]


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
    config: AdvantageConfig | None = None,
    epsilon: float = 1e-6,
) -> list[float]:
    """Compares the episodes of each group with one another (GRPO, arXiv 2402.03300, equation 3).

    Args:
        rewards: The outcomes of the episodes of a batch.
        groups: Which group each belongs to; all to one by default.
        config: What a reward is compared with, and what the difference is divided by.
        epsilon: Added to the standard deviation (of the rewards as a whole, not of a sample), in the units of the rewards.

    Returns:
        One advantage per episode; zeros in groups whose rewards are all equal, or that have a single episode.

    Example:
        >>> group_advantages([1, 0, 0, 1], epsilon=0), group_advantages([1, 1]), group_advantages([])
        ([1.0, -1.0, -1.0, 1.0], [0.0, 0.0], [])
        >>> group_advantages([1, 0, 0, 0], config=AdvantageConfig(scale="none"))
        [0.75, -0.25, -0.25, -0.25]
        >>> group_advantages([3, 0, 0, 0], config=AdvantageConfig("leave-one-out", "none"))
        [3.0, -1.0, -1.0, -1.0]
        >>> group_advantages([1, 0, 1, 1], [0, 0, 1, 1], AdvantageConfig(scale="batch"), epsilon=0)
        [1.1547005383792517, -1.1547005383792517, 0.0, 0.0]
    """
    config = config or AdvantageConfig()
    members: dict[int, list[int]] = {}
    for number, group in enumerate([0] * len(rewards) if groups is None else groups):
        members.setdefault(group, []).append(number)
    advantages = [0.0] * len(rewards)
    for numbers in members.values():
        values = [rewards[number] for number in numbers]
        if len(set(values)) <= 1:
            continue
        centred = _centred(values)
        if config.baseline == "leave-one-out":
            # r_i - mean of the others = (r_i - mean of all) * n / (n - 1)
            centred = [value * len(values) / (len(values) - 1) for value in centred]
        if config.scale != "none":
            divisor = _deviation(values if config.scale == "group" else rewards) + epsilon
            centred = [value / divisor for value in centred]
        for number, value in zip(numbers, centred, strict=True):
            advantages[number] = value
    return advantages


def overlong_penalty(length: int, limit: int, buffer: int, penalty: float = 1.0) -> float:
    """Returns what is added to the reward of an episode that comes close to the most tokens it may have.

    Source: soft overlong punishment, DAPO, arXiv 2503.14476, equation 13.

    Args:
        length: Tokens of the episode.
        limit: Most tokens that one may have.
        buffer: Tokens before the limit over which the penalty grows; 0 for no penalty.
        penalty: Its size at the limit and beyond.

    Example:
        >>> [overlong_penalty(length, limit=100, buffer=20) for length in (80, 85, 100, 110)]
        [0.0, -0.25, -1.0, -1.0]
    """
    excess = length - (limit - buffer)
    if buffer <= 0 or excess <= 0:
        return 0.0
    return -penalty * min(1.0, excess / buffer)


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def _deviation(values: Sequence[float]) -> float:
    centred = _centred(values)
    return float((sum(value * value for value in centred) / len(centred)) ** 0.5)
