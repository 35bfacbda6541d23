from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleaner_env.agents.plots import CURVES, Curve, Panel, plot_curves


def picture(metrics: list[dict[str, Any]], folder: Path, panels: tuple[Panel, ...] = CURVES) -> Any:
    from matplotlib.image import imread

    plot_curves(metrics, folder / "curves.png", panels=panels)
    return imread(folder / "curves.png")


def pixels(image: Any, colour: str) -> int:
    wanted = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return int((np.abs(image[..., :3] - wanted).max(axis=-1) < 0.01).sum())


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_any_number_of_steps_can_be_drawn(tmp_path: Path, steps: int) -> None:
    metrics = [{"step": step, **{curve.metric: 0.5 for panel in CURVES for curve in panel.curves}} for step in range(steps)]
    image = picture(metrics, tmp_path)
    assert image.shape[1] == 1320
    if steps:
        for panel in CURVES:
            for curve in panel.curves:
                assert pixels(image, curve.colour) > 20, curve


def test_a_metric_that_was_never_measured_is_left_out(tmp_path: Path) -> None:
    panels = (Panel("Left", "share", (Curve("a", "a", "#ff0000"), Curve("b", "b", "#0000ff"))),)
    image = picture([{"step": 1, "a": 0.5, "b": None}, {"step": 2, "a": 0.7}], tmp_path, panels)
    assert pixels(image, "#ff0000") > 20
    assert pixels(image, "#0000ff") == 0


def test_gaps_are_bridged(tmp_path: Path) -> None:
    panels = (Panel("Left", "share", (Curve("a", "a", "#ff0000", sparse=True),)),)
    metrics = [{"step": 1, "a": 0.5}, {"step": 2}, {"step": 3, "a": None}, {"step": 4, "a": 0.5}]
    assert pixels(picture(metrics, tmp_path, panels), "#ff0000") > 300
