"""Runs that are killed at random moments and resumed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-c", "from cleaner_env.cli import main; main()", "train"]
OPTIONS = [
    "steps=6",
    "save_every=1",
    "evaluation.every=2",
    "evaluation.episodes=2",
    "rollout.problems=2",
    "rollout.group_size=2",
    "rollout.turn_tokens=8",
    "learner.learning_rate=0.01",
    "runs=runs",
]
ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(Path(__file__).parents[1] / "agents")}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def logged(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Metrics and episodes, without what the clock says."""
    metrics, episodes = (
        [json.loads(line) for line in (run / name).read_text().splitlines()] for name in ("metrics.jsonl", "episodes.jsonl")
    )
    for line in metrics:
        for name in [name for name in line if name.startswith("speed/")]:
            del line[name]
    for episode in episodes:
        for part in (*episode["turns"], *episode["repairs"]):
            part.pop("seconds", None)
    return metrics, episodes


def test_a_run_killed_at_random_moments_gives_what_an_undisturbed_one_gives(
    tmp_path: Path, model_directory: Path, parity_env: str
) -> None:
    options = [*OPTIONS, f"env.id={parity_env}", "deterministic=true"]
    shutil.copytree(model_directory, tmp_path / "model")
    assert finish(start(tmp_path, "model=model", "name=whole", *options))[0] == 0
    moments = random.Random(0)
    run = tmp_path / "runs" / "killed"
    process = start(tmp_path, "model=model", "name=killed", *options)
    for _ in range(3):
        # Importing takes seconds in which nothing can be lost, so the clock starts with the first sign of life.
        seen = sum(path.stat().st_size for path in run.glob("*.jsonl"))
        while process.poll() is None and sum(path.stat().st_size for path in run.glob("*.jsonl")) == seen:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        process.kill()
        finish(process)
        process = start(tmp_path, "--resume", "runs/killed")
    code, errors = finish(process)
    assert code == 0 or "all steps are taken already" in errors, errors
    assert logged(run) == logged(tmp_path / "runs" / "whole")
    assert len({line["loss/grad_norm"] for line in logged(run)[0][1:]}) == 6
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [f"step-{n:06d}" for n in range(1, 7)]


def test_a_run_killed_at_random_moments_loses_no_finished_episode(
    tmp_path: Path, model_directory: Path, parity_env: str
) -> None:
    options = [*OPTIONS, f"env.id={parity_env}", "steps=4", "save_every=2", "rollout.problems=4", "rollout.group_size=4"]
    shutil.copytree(model_directory, tmp_path / "model")
    moments = random.Random(1)
    run = tmp_path / "runs" / "killed"
    process = start(tmp_path, "model=model", "name=killed", *options)
    finished: dict[str, Any] = {}
    for _ in range(2):
        seen = sum(path.stat().st_size for path in run.glob("*.jsonl"))
        while process.poll() is None and sum(path.stat().st_size for path in run.glob("*.jsonl")) == seen:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.5)
        process.kill()
        finish(process)
        journal = run / "journal.jsonl"
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        for episode in map(json.loads, lines):
            said = [turn["action"]["text"] for turn in episode["turns"]]
            assert finished.setdefault(f"{episode['step']} {episode['stream']}", said) == said
        process = start(tmp_path, "--resume", "runs/killed")
    code, errors = finish(process)
    assert code == 0 or "all steps are taken already" in errors, errors
    assert not (run / "journal.jsonl").exists()
    metrics, episodes = logged(run)
    assert [line["step"] for line in metrics] == list(range(5))
    assert len(episodes) == 4 * 16 + 3 * 2
    # The journal counts the steps taken before an episode, the record those with it.
    kept = {
        f"{episode['step'] - (episode['phase'] == 'train')} {episode['stream']}": [
            turn["action"] for turn in episode["turns"]
        ]
        for episode in episodes
    }
    assert len(finished) > 4
    assert {name: kept[name] for name in finished} == finished


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume", "runs/none"], "runs/none does not exist; give the folder that the run printed"),
        (["--resume", "runs/none", "--config", "a.toml"], "leave out --config a.toml"),
    ],
)
def test_what_cannot_be_resumed(tmp_path: Path, arguments: list[str], words: str) -> None:
    code, errors = finish(start(tmp_path, *arguments))
    assert (code, errors.count("\n")) == (2, 1)
    assert words in errors


def test_a_finished_run_goes_on_when_it_is_given_more_steps(tmp_path: Path, model_directory: Path) -> None:
    options = ["steps=1", *OPTIONS[1:]]
    assert finish(start(tmp_path, f"model={model_directory}", "name=run", *options))[0] == 0
    assert finish(start(tmp_path, "--resume", "runs/run", "steps=2"))[0] == 0
    metrics, _ = logged(tmp_path / "runs" / "run")
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert "steps = 2\n" in (tmp_path / "runs" / "run" / "config.toml").read_text()
