"""Where the metrics of a run are sent while it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from cleaner_env.errors import ConfigError

__all__ = ["Tracker", "check_trackers", "open_tracker"]


class Tracker(Protocol):
    """Takes the metrics of a run, step by step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes what was measured in a step."""

    def close(self) -> None:
        """Sends what has not been sent yet."""


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events of an interrupted run that lie after this step are hidden.
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Service:
    """Weights & Biases, or trackio, which took over its interface."""

    def __init__(self, library: ModuleType, **options: Any) -> None:
        self._library: Any = library
        library.init(**options)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._library.log({name: value for name, value in metrics.items() if isfinite(value)}, step=step)

    def close(self) -> None:
        self._library.finish()


def open_tracker(name: str, folder: Path, step: int, project: str, config: Mapping[str, Any]) -> Tracker:
    """Opens a tracker for a run.

    Args:
        name: ``"tensorboard"``, ``"wandb"`` or ``"trackio"``.
        folder: The run's folder. Its name is the run's; a run that goes on in it goes on at the tracker too.
        step: The first step that will be logged.
        project: What services file the run under.
        config: The run's options, for services to show.

    Raises:
        ConfigError: The library is not installed.
    """
    if name == "tensorboard":
        return _TensorBoard(folder, step)
    library = _library(name)
    options: dict[str, Any] = {"project": project, "name": folder.name, "config": json.loads(json.dumps(config))}
    if name == "wandb":
        return _Service(library, **options, dir=str(folder), id=f"{project}-{folder.name}", resume="allow")
    return _Service(library, **options, resume="allow")


def check_trackers(names: tuple[str, ...]) -> None:
    """Makes sure that the libraries of trackers are there, before costly work.

    Raises:
        ConfigError: One is not installed.
    """
    for name in names:
        if name != "tensorboard":
            _library(name)


def _library(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"the tracker {name} is not installed; install it with: pip install {name}, or leave it out of trackers"
        ) from None
