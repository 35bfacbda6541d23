"""Finished episodes as what the learner takes: tokens with their mask, old log-probabilities and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isnan

import numpy as np

from cleaner_env.agents.engine import Engine
from cleaner_env.agents.learner import TrainingRow
from cleaner_env.agents.loss import group_advantages
from cleaner_env.agents.rendering import RenderedConversation, Renderer
from cleaner_env.agents.rollout import Episode

__all__ = ["old_logprobs", "training_rows"]


def training_rows(
    episodes: Sequence[Episode], engine: Engine, renderer: Renderer, temperature: float
) -> tuple[list[TrainingRow], dict[str, float]]:
    """Renders and scores episodes, and leaves out of the loss what is to be left out.

    The gap between the two contexts of a graft is noted in its `Repair`.

    Args:
        episodes: Those to learn from, in groups.
        engine: Holds the weights that they were sampled with.
        renderer: Turns conversations into tokens.
        temperature: The sampling temperature.

    Returns:
        One row per episode, and metrics: the share of groups whose rewards differ, the number of grafted tokens and the
        mean gap per token.
    """
    advantages, telling_groups = _advantages(episodes)
    rendered = [renderer.render(episode.conversation) for episode in episodes]
    logprobs, gaps = old_logprobs(engine, rendered, temperature)
    for episode, row, row_gaps in zip(episodes, rendered, gaps, strict=True):
        _note_gaps(episode, row, row_gaps)
    rows = [
        TrainingRow(row.token_ids, _loss_mask(row, episode.masked_turns), values, advantage)
        for episode, row, values, advantage in zip(episodes, rendered, logprobs, advantages, strict=True)
    ]
    measured = [gap for row_gaps in gaps for gap in row_gaps.values()]
    return rows, {
        "train/telling_groups": telling_groups,
        "graft/tokens": float(len(measured)),
        "graft/logprob_gap": float(np.mean(measured)) if measured else float("nan"),
    }


def old_logprobs(
    engine: Engine, rows: Sequence[RenderedConversation], temperature: float
) -> tuple[list[list[float]], list[dict[int, float]]]:
    """Returns each row's log-probabilities under its own context, recomputing those that were sampled under another.

    Args:
        engine: Holds the weights that the rows were sampled with.
        rows: Rendered conversations.
        temperature: The sampling temperature.

    Returns:
        The log-probabilities, one list per row (NaN where the token is no action), and for each row, by the position of a
        grafted token, the gap ``log pi(token | sampled context) - log pi(token | purified context)`` in nats.
    """
    stale = [
        [position for position in range(len(row.token_ids)) if row.action_mask[position] and _is_stale(row, position)]
        for row in rows
    ]
    affected = [number for number, positions in enumerate(stale) if positions]
    scored = engine.logprobs(
        [rows[number].token_ids for number in affected], [stale[number][0] for number in affected], temperature
    )
    logprobs = [list(row.logprobs) for row in rows]
    gaps: list[dict[int, float]] = [{} for _ in rows]
    for number, values in zip(affected, scored, strict=True):
        for position in stale[number]:
            value = values[position - stale[number][0]]
            gap = logprobs[number][position] - value
            logprobs[number][position] = value
            if not isnan(gap):
                gaps[number][position] = gap
    return logprobs, gaps


def _is_stale(row: RenderedConversation, position: int) -> bool:
    return row.grafted[position] or isnan(row.logprobs[position])


def _note_gaps(episode: Episode, row: RenderedConversation, gaps: dict[int, float]) -> None:
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


def _advantages(episodes: Sequence[Episode]) -> tuple[list[float], float]:
    """Returns the episodes' advantages within their groups, and the share of groups whose rewards differ."""
    members: dict[int, list[int]] = {}
    for number, episode in enumerate(episodes):
        members.setdefault(episode.request.group, []).append(number)
    advantages = [0.0] * len(episodes)
    telling = 0
    for group in members.values():
        values = group_advantages([episodes[number].reward for number in group])
        telling += any(values)
        for number, value in zip(group, values, strict=True):
            advantages[number] = value
    return advantages, telling / len(members)
