"""Learning curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CURVES", "Curve", "Panel", "plot_curves"]

_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#555555"  # told apart by colour-blind readers
_NOTE: Final = (
    "Purification takes errors out of histories mechanically: a gap between purified and raw episodes is not learning.\n"
    "What was learned shows in raw episodes and in evaluation with SAAR off."
)


@dataclass(frozen=True)
class Curve:
    """A metric and how it is drawn.

    Attributes:
        metric: Its name in ``metrics.jsonl``.
        label: What the legend calls it.
        colour: A hex colour.
        sparse: Drawn as joined points (an evaluation every few steps), not as a smoothed line over faint single steps.
    """

    metric: str
    label: str
    colour: str
    sparse: bool = False


@dataclass(frozen=True)
class Panel:
    """One coordinate system.

    Attributes:
        title: What is shown.
        unit: The label of the vertical axis.
        curves: What is drawn; metrics that were never logged are left out.
        share: Whether values lie between 0 and 1.
    """

    title: str
    unit: str
    curves: tuple[Curve, ...]
    share: bool = True


CURVES: Final = (
    Panel(
        "Success at evaluation, SAAR off",
        "share of episodes",
        (Curve("eval/success", "evaluation", _BLUE, sparse=True),),
    ),
    Panel(
        "Training reward",
        "mean reward of an episode",
        (
            Curve("train/reward", "all episodes", _GREY),
            Curve("train/reward_raw", "raw episodes", _ORANGE),
            Curve("train/reward_purified", "purified episodes", _GREEN),
        ),
        share=False,
    ),
    Panel(
        "First-attempt tool errors",
        "share of first attempts that fail",
        (
            Curve("train/first_attempt_error_raw", "raw training episodes", _ORANGE),
            Curve("train/first_attempt_error_purified", "purified training episodes", _GREEN),
            Curve("eval/first_attempt_error", "evaluation, SAAR off", _BLUE, sparse=True),
        ),
    ),
    Panel(
        "Recovered errors",
        "share of failed calls repaired by the next call",
        (
            Curve("train/recovered_raw", "raw training episodes", _ORANGE),
            Curve("train/recovered_purified", "purified training episodes", _GREEN),
            Curve("eval/recovered", "evaluation, SAAR off", _BLUE, sparse=True),
        ),
    ),
)
"""The panels of ``curves.png``."""


def plot_curves(
    metrics: Sequence[Mapping[str, Any]], file: str | Path, title: str = "", panels: Sequence[Panel] = CURVES
) -> None:
    """Draws learning curves into a PNG file.

    Args:
        metrics: One mapping a step, with ``"step"`` and any of the metrics in ``panels``; ``None`` is a gap.
        file: The file to write.
        title: A line above the panels.
        panels: What to draw, two panels a row.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 3.4 * rows + 0.9), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(rows, 2, squeeze=False).flat, panels, strict=False):
        _draw_panel(axes, panel, metrics)
    if title:
        figure.suptitle(title, fontsize=12)
    figure.supxlabel(_NOTE, fontsize=8.5, color=_GREY)
    figure.savefig(file, format="png")


def _draw_panel(axes: Axes, panel: Panel, metrics: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    drawn = 0
    for curve in panel.curves:
        points = [(line["step"], line[curve.metric]) for line in metrics if line.get(curve.metric) is not None]
        if not points:
            continue
        drawn += 1
        steps, values = [step for step, _ in points], [value for _, value in points]
        lone = "o" if len(points) == 1 else ""
        if curve.sparse:
            axes.plot(
                steps, values, color=curve.colour, marker="o", markersize=4, linewidth=1.8, label=curve.label, zorder=3
            )
        else:
            axes.plot(steps, values, color=curve.colour, alpha=0.22, linewidth=0.8)
            axes.plot(steps, _smoothed(values), color=curve.colour, marker=lone, linewidth=1.8, label=curve.label)
    axes.set_title(panel.title, fontsize=11, loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylabel(panel.unit, fontsize=9)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if metrics:
        axes.set_xlim(metrics[0]["step"] - 0.5, metrics[-1]["step"] + 0.5)
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    if drawn > 1:
        axes.legend(fontsize=8, frameon=False)
    elif not drawn:
        axes.text(0.5, 0.5, "not logged yet", ha="center", va="center", color=_GREY, transform=axes.transAxes)


def _smoothed(values: Sequence[float]) -> list[float]:
    """Returns the mean of each value and its neighbours, about a twentieth of the run on either side."""
    reach = len(values) // 20
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
