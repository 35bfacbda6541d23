"""Where a training run keeps what it produces.

::

    runs/20261129-140052/
      config.toml         every option, resolved
      metrics.jsonl       one object a step: {"step": 20, "train/reward": 0.31, ...}
      episodes.jsonl      one object an episode
      journal.jsonl       the episodes that ended since the latest checkpoint, with their tokens
      tensorboard/        the metrics as TensorBoard events
      curves.png          the learning curves
      checkpoints/
        step-000020/      an ordinary model directory, and trainer_state.pt

A line of ``episodes.jsonl`` has the keys that `cleaner_env.wrappers.records` describes, and these:

===================  ====================================================================================
step, phase          the training step, and ``"train"`` or ``"eval"``
index, group         the problem's index in the data set; the group whose rewards are compared
sampled_tokens       tokens the model wrote, hidden attempts included
tries                how often the episode was begun; more than once where a sandbox or engine failed
===================  ====================================================================================

NaN and infinities, which JSON lacks, are written as ``null``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.agents.models import quiet_transformers
from cleaner_env.agents.plots import plot_curves
from cleaner_env.agents.trackers import Tracker, open_tracker
from cleaner_env.errors import ConfigError
from cleaner_env.wrappers.records import append_records, check_writable, json_line, write_whole

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from cleaner_env.agents.episodes import Episode

__all__ = ["RunFolder", "load_trainer_state"]

_TRAINER_STATE: Final = "trainer_state.pt"
_CHECKPOINT: Final = re.compile(r"step-(\d{6,})")


class RunFolder:
    """One run's folder. Use `create` for a new run and `reopen` for one that goes on.

    Files are written so that a killed run leaves whole lines and whole checkpoints. One process at a time writes to a
    folder; an instance made with its path alone is for reading.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trackers: list[Tracker] = []
        self._lock = -1

    @classmethod
    def create(cls, root: str | Path, config_toml: str, name: str | None = None) -> RunFolder:
        """Makes a new folder.

        Args:
            root: Where runs are kept; made if need be.
            config_toml: The resolved configuration.
            name: The folder's name; the time of day by default.

        Raises:
            ConfigError: The name is no plain name, or a folder of this name exists and is not empty.
        """
        run = cls(_named_folder(Path(root), name) if name is not None else _dated_folder(Path(root)))
        run._acquire()
        run.write_config(config_toml)
        return run

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """Opens the folder of a run that goes on from its latest checkpoint, or from its beginning where it has none.

        What was logged after that checkpoint is dropped, since those steps are taken again.

        Raises:
            ConfigError: The folder is none, or another process has it.
        """
        if not (Path(path) / "config.toml").is_file():
            raise ConfigError(f"{path} is no run folder, it has no config.toml")
        run = cls(Path(path))
        run._acquire()
        check_writable(run.path / "episodes.jsonl")  # before anything is changed
        for leftover in run._checkpoints.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)
        checkpoint = run.latest_checkpoint()
        for name in ("metrics.jsonl", "episodes.jsonl"):
            run._keep_until(run.path / name, _step_of(checkpoint) if checkpoint else -1)
        return run

    def write_config(self, config_toml: str) -> None:
        """Replaces ``config.toml``."""
        write_whole(self.path / "config.toml", config_toml.encode("utf-8"))

    def _acquire(self) -> None:
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(f"the run in {self.path} still goes on in another process; wait for it, or end it") from None

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one step's metrics to ``metrics.jsonl``, and gives them to the trackers."""
        with (self.path / "metrics.jsonl").open("ab") as file:
            file.write(json_line({"step": step, **metrics}))
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def track(self, names: Iterable[str], step: int, project: str, config: Mapping[str, Any]) -> None:
        """Opens trackers, as `open_tracker` does; they are closed with the folder."""
        for name in names:
            self._trackers.append(open_tracker(name, self.path, step, project, config))

    def metrics(self) -> list[dict[str, Any]]:
        """Returns what was logged, one dict a step."""
        return list(_read_lines(self.path / "metrics.jsonl"))

    def write_episodes(self, step: int, episodes: Iterable[Episode], phase: str = "train") -> None:
        """Appends episodes to ``episodes.jsonl``."""
        labels = {"step": step, "phase": phase}
        append_records(self.path / "episodes.jsonl", (episode.as_record(labels) for episode in episodes))

    def save_checkpoint(
        self,
        step: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        trainer_state: Mapping[str, Any],
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> Path:
        """Writes ``checkpoints/step-<step>``, which appears when it is complete, or not at all.

        Args:
            step: Steps taken so far.
            model: Saved with ``save_pretrained``.
            tokenizer: Likewise.
            trainer_state: Whatever else is needed to go on: tensors, numbers, strings, and containers of them.
            weights: What is saved as the model's weights; its own by default.

        Returns:
            The checkpoint's directory.
        """
        import torch

        target = self._checkpoints / f"step-{step:06d}"
        self._checkpoints.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=self._checkpoints) as scratch:
            built = Path(scratch) / "new"
            with quiet_transformers():
                model.save_pretrained(built, state_dict=None if weights is None else dict(weights))
                tokenizer.save_pretrained(built)
            torch.save(dict(trainer_state), built / _TRAINER_STATE)
            if target.exists():
                target.replace(Path(scratch) / "old")
            built.replace(target)
        return target

    def prune_checkpoints(self, keep: int, best_metric: str) -> None:
        """Deletes all checkpoints but the latest ones and the best one.

        Args:
            keep: How many of the latest to keep, at least 1.
            best_metric: The metric whose highest value says which is the best; the latest of equal ones is. Where it was
                logged at the step of no checkpoint, there is no best.
        """
        values = {line["step"]: line.get(best_metric) for line in self.metrics()}
        found = self.checkpoints()
        judged = [path for path in found if values.get(_step_of(path)) is not None]
        best = max(judged, key=lambda path: (values[_step_of(path)], _step_of(path)), default=None)
        for old in found[: -max(keep, 1)]:
            if old != best:
                shutil.rmtree(old)

    def checkpoints(self) -> list[Path]:
        """Returns the checkpoints' directories, oldest first."""
        found = [path for path in self._checkpoints.glob("step-*") if _CHECKPOINT.fullmatch(path.name)]
        return sorted(found, key=_step_of)

    def latest_checkpoint(self) -> Path | None:
        """Returns the directory of the latest checkpoint, ``None`` where there is none."""
        found = self.checkpoints()
        return found[-1] if found else None

    def draw_curves(self) -> Path:
        """Draws ``curves.png`` anew from what was logged."""
        target = self.path / "curves.png"
        scratch = self.path / ".curves.png"
        plot_curves(self.metrics(), scratch, title=self.path.name)
        scratch.replace(target)
        return target

    def close(self) -> None:
        """Closes the trackers and gives the folder free. May be called twice."""
        trackers, self._trackers = self._trackers, []
        for tracker in trackers:
            tracker.close()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @staticmethod
    def _keep_until(file: Path, step: int) -> None:
        if file.exists():
            with file.open("rb") as lines:
                write_whole(file, (line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= step))


def load_trainer_state(checkpoint: str | Path) -> dict[str, Any]:
    """Reads what `RunFolder.save_checkpoint` was given as ``trainer_state``. No code in the file is run.

    Raises:
        ConfigError: The directory is no checkpoint of a run.
    """
    import torch

    file = Path(checkpoint) / _TRAINER_STATE
    if not file.is_file():
        raise ConfigError(f"{checkpoint} is no checkpoint of a run, it has no {_TRAINER_STATE}")
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def _named_folder(root: Path, name: str) -> Path:
    if name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise ConfigError(f"the name of a run is a plain folder name, got {name!r}")
    path = root / name
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not empty; choose another name for the run, or delete it")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _dated_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    name = time.strftime("%Y%m%d-%H%M%S")
    suffix = 1
    while True:
        path = root / (name if suffix == 1 else f"{name}-{suffix}")
        try:
            path.mkdir()
        except FileExistsError:
            suffix += 1
        else:
            return path


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSONL file; a last line that a killed run left unfinished is skipped."""
    if file.exists():
        for line in file.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)
