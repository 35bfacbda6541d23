"""Finished episodes as what the learner takes: tokens with their mask, old log-probabilities and advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, isnan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cleaner_env.agents.advantages import group_advantages, overlong_penalty
from cleaner_env.agents.engine import Engine
from cleaner_env.agents.episodes import Episode
from cleaner_env.agents.grpo_config import AdvantageConfig
from cleaner_env.agents.learner import TrainingRow
from cleaner_env.agents.rendering import RenderedConversation, Renderer
from cleaner_env.agents.turn_credit import failed_first_attempts, gated_pairs

__all__ = ["old_logprobs", "training_rows"]

_DEFAULT: Final = AdvantageConfig()


def training_rows(
    episodes: Sequence[Episode],
    engine: Engine,
    renderer: Renderer,
    temperature: float,
    advantage: AdvantageConfig = _DEFAULT,
    *,
    context_tokens: int = 0,
    grafts: str = "recomputed",
) -> tuple[list[TrainingRow], dict[str, float]]:
    """Renders and scores episodes, and leaves out of the loss what is to be left out.

    The gap between the two contexts of a graft is noted in its `Repair`.

    Args:
        episodes: Those to learn from, in groups.
        engine: Holds the weights that they were sampled with.
        renderer: Turns conversations into tokens.
        temperature: The sampling temperature.
        advantage: How the episodes are compared, and what single turns are credited with.
        context_tokens: Most tokens that a conversation may have, for the penalty on those that come close.
        grafts: As in `ImportanceConfig`.

    Returns:
        One row per episode, followed by those of gated pairs, and metrics: the number of grafted tokens and the mean gap
        per token; with a ``pair_weight`` the number of pairs.
    """
    rendered = [renderer.render(episode.conversation) for episode in episodes]
    rewards = [
        episode.reward
        + overlong_penalty(len(row.token_ids), context_tokens, advantage.overlong_buffer, advantage.overlong_penalty)
        for episode, row in zip(episodes, rendered, strict=True)
    ]
    groups = [episode.request.group for episode in episodes]
    compared = group_advantages(rewards, groups, advantage)
    credited = [
        _credit(episode, row, value, advantage) for episode, row, value in zip(episodes, rendered, compared, strict=True)
    ]
    pairs = [gated_pairs(episode, renderer) if advantage.pair_weight else [] for episode in episodes]
    for row, values, found in zip(rendered, credited, pairs, strict=True):
        for pair in found:
            values[list(row.turn_span(pair.replaced_turn))] += advantage.pair_weight / 2
    failed = [pair.failed for found in pairs for pair in found]

    logprobs, gaps = old_logprobs(engine, [*rendered, *failed], temperature, grafts)
    for episode, row, row_gaps in zip(episodes, rendered, gaps, strict=False):
        _note_gaps(episode, row, row_gaps)
    rows = [
        TrainingRow(row.token_ids, _loss_mask(row, episode.masked_turns), old, values, _grafted(row, grafts))
        for episode, row, old, values in zip(episodes, rendered, logprobs, credited, strict=False)
    ]
    rows += [
        TrainingRow(row.token_ids, row.action_mask, old, -advantage.pair_weight, _grafted(row, grafts), counted=False)
        for row, old in zip(failed, logprobs[len(rendered) :], strict=True)
    ]
    measured = [gap for row_gaps in gaps for gap in row_gaps.values()]
    metrics = {
        "graft/tokens": float(len(measured)),
        "graft/logprob_gap": float(np.mean(measured)) if measured else float("nan"),
    }
    return rows, metrics | ({"train/pairs": float(len(failed))} if advantage.pair_weight else {})


def old_logprobs(
    engine: Engine, rows: Sequence[RenderedConversation], temperature: float, grafts: str = "recomputed"
) -> tuple[list[list[float]], list[dict[int, float]]]:
    """Returns each row's log-probabilities under its own context, recomputing those that were sampled under another.

    Args:
        engine: Holds the weights that the rows were sampled with.
        rows: Rendered conversations.
        temperature: The sampling temperature.
        grafts: ``"raw"`` keeps those that a token was sampled with in another context, which is wrong, for an ablation.
            Tokens that were not sampled are computed all the same.

    Returns:
        The log-probabilities, one list per row (NaN where the token is no action), and for each row, by the position of a
        grafted token, the gap ``log pi(token | sampled context) - log pi(token | purified context)`` in nats.
    """
    stale = [
        [position for position in range(len(row.token_ids)) if row.action_mask[position] and _is_stale(row, position)]
        for row in rows
    ]
    affected = [number for number, positions in enumerate(stale) if positions]
    # Nothing after the last such token is read, and of what stands before the first one an engine keeps what it read.
    scored = engine.logprobs(
        [rows[number].token_ids[: stale[number][-1] + 1] for number in affected],
        [stale[number][0] for number in affected],
        temperature,
    )
    logprobs = [list(row.logprobs) for row in rows]
    gaps: list[dict[int, float]] = [{} for _ in rows]
    for number, values in zip(affected, scored, strict=True):
        for position in stale[number]:
            value = values[position - stale[number][0]]
            sampled = logprobs[number][position]
            if isnan(sampled) or grafts == "recomputed":
                logprobs[number][position] = value
            if not isnan(sampled):
                gaps[number][position] = sampled - value
    return logprobs, gaps


def _is_stale(row: RenderedConversation, position: int) -> bool:
    return row.grafted[position] or isnan(row.logprobs[position])


def _grafted(row: RenderedConversation, grafts: str) -> list[bool]:
    """Returns which actions have no log-probability from the rollout that is one of their own context."""
    return [
        isnan(value) or (moved and grafts == "recomputed") for value, moved in zip(row.logprobs, row.grafted, strict=True)
    ]


def _credit(episode: Episode, row: RenderedConversation, value: float, config: AdvantageConfig) -> NDArray[np.float32]:
    """Returns the advantage of each token of an episode."""
    advantages = np.full(len(row.token_ids), value, np.float32)
    if config.first_error_penalty:
        for turn in failed_first_attempts(episode):
            advantages[list(row.turn_span(turn))] -= config.first_error_penalty
    return advantages


def _note_gaps(episode: Episode, row: RenderedConversation, gaps: Mapping[int, float]) -> None:
    for repair in episode.repairs:
        if repair.purified is not None:
            positions = row.turn_span(repair.turn_before)
            moved = [gaps[position] for position in positions if position in gaps]
            repair.logprob_gap = fsum(moved) if moved else None


def _loss_mask(row: RenderedConversation, masked_turns: Sequence[int]) -> Sequence[bool]:
    mask = list(row.action_mask)
    for turn in masked_turns:
        for position in row.turn_span(turn):
            mask[position] = False
    return mask
