"""The metrics of a training step."""

from __future__ import annotations

from collections.abc import Sequence

from cleaner_env.agents.batches import telling_groups
from cleaner_env.agents.episodes import Episode
from cleaner_env.agents.summary import Summary, summarise

__all__ = ["named_summary", "training_metrics"]


def training_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns what the episodes of a step came to, all of those that were collected.

    First-attempt errors are counted before purification. ``train/telling_groups`` is the share of groups in which rewards
    differ, ``train/partial_groups`` that of groups which lost episodes to a failing or hanging sandbox,
    ``train/retried_episodes`` how many were begun more than once.
    """
    groups = {episode.request.group for episode in episodes}
    partial = {episode.request.group for episode in episodes if not episode.valid}
    raw = [episode for episode in episodes if not episode.request.saar]
    purified = [episode for episode in episodes if episode.request.saar]
    metrics = named_summary("train", summarise(episodes))
    metrics["train/telling_groups"] = len(telling_groups(episodes)) / len(groups)
    metrics["train/partial_groups"] = len(partial) / len(groups)
    metrics["train/retried_episodes"] = float(sum(episode.tries > 1 for episode in episodes))
    for name, part in (("raw", raw), ("purified", purified)):
        if part:
            metrics |= {f"{metric}_{name}": value for metric, value in named_summary("train", summarise(part)).items()}
    for outcome in ("shallow", "deep", "failed", "abandoned"):
        metrics[f"saar/{outcome}"] = float(sum(repair.outcome == outcome for e in episodes for repair in e.repairs))
    return metrics


def named_summary(prefix: str, summary: Summary) -> dict[str, float]:
    """Returns a summary as metrics, named with a prefix; what could not be measured is NaN."""
    numbers = {
        "success": summary.success,
        "reward": summary.reward,
        "first_attempt_error": summary.first_attempt_error,
        "recovered": summary.recovered,
        "tool_calls": summary.tool_calls,
        "turns": summary.turns,
        "tokens": summary.tokens,
        "infrastructure_errors": summary.infrastructure_errors,
    }
    return {f"{prefix}/{name}": float("nan") if value is None else float(value) for name, value in numbers.items()}
