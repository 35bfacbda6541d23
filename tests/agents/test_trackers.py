"""Trackers, each with its real library where that is installed; TensorBoard is tested with the run folder."""

import math
import sys

import pytest

from cleaner_env.agents.grpo_config import TRACKERS, GRPOConfig
from cleaner_env.agents.trackers import check_trackers, open_tracker
from cleaner_env.errors import ConfigError


def test_unknown_trackers_are_refused():
    with pytest.raises(ConfigError, match="trackers must be one of tensorboard, wandb, trackio, got 'mlflow'"):
        GRPOConfig(trackers=("mlflow",))


@pytest.mark.parametrize("name", TRACKERS[1:])
def test_a_library_that_is_not_there_is_named_before_anything_costly(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        check_trackers(("tensorboard", name))
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        open_tracker(name, tmp_path, 0, "project", {})


def test_weights_and_biases_takes_a_run_offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = open_tracker("wandb", tmp_path, 0, "project", {"rollout": {"shape": (1, 2), "limit": None}})
    tracker.log(0, {"eval/success": 0.5, "gap": math.nan})
    tracker.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_trackio_takes_a_run(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="trackio is not installed")
    tracker = open_tracker("trackio", tmp_path / "run-1", 0, "project", {"seed": 1})
    tracker.log(0, {"eval/success": 0.5, "gap": math.nan})
    tracker.close()
    assert list(tmp_path.glob("*.db"))
