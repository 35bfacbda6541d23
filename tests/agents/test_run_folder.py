from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleaner_env.agents.episodes import Episode, EpisodeRequest
from cleaner_env.agents.models import load_model
from cleaner_env.agents.run_folder import RunFolder, load_trainer_state
from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with RunFolder.create(tmp_path, "steps = 3\n", "first") as folder:
        yield folder


@pytest.fixture(scope="module")
def loaded(model_directory: Path) -> Any:
    return load_model(model_directory)


def episode(text: str) -> Episode:
    turn = Completion(text, (1,), (-0.5,), (0,))
    conversation = ({"role": "user", "content": "?"}, {"role": "assistant", "content": turn})
    info = {"problem_id": "p-4", "dataset": "exam", "verdict": "correct", "stop_condition": "answered"}
    return Episode(EpisodeRequest(4, (0, 1), 2), conversation, conversation, 1.0, info, 1)


def json_lines(file: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_new_folder_holds_the_config(run: RunFolder) -> None:
    assert run.path.name == "first"
    assert (run.path / "config.toml").read_text() == "steps = 3\n"
    assert [path.name for path in run.path.iterdir()] == ["config.toml"]


def test_runs_at_one_time_get_folders_of_their_own(tmp_path: Path) -> None:
    paths = {RunFolder.create(tmp_path / "runs", "").path for _ in range(5)}
    assert len(paths) == 5
    assert all(re.fullmatch(r"\d{8}-\d{6}(-\d)?", path.name) for path in paths)


def test_what_exists_is_not_overwritten(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first exists and is not empty; choose another name"):
        RunFolder.create(tmp_path, "other\n", "first")
    assert (run.path / "config.toml").read_text() == "steps = 3\n"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file exists"):
        RunFolder.create(tmp_path, "", "file")
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path, "", "empty").path == tmp_path / "empty"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "a\0b"])
def test_a_name_is_a_plain_folder_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="plain folder name"):
        RunFolder.create(tmp_path / "runs", "", name)
    assert not any(tmp_path.iterdir())


def test_metrics_are_strict_json_and_tensorboard_events(run: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.track(("tensorboard",), 1, "cleaner-env", {})
    run.log(1, {"loss": 0.5, "eval/success": math.nan})
    run.log(2, {"loss": np.float32(0.25), "gap": math.inf, "tokens": np.int64(7)})
    assert json_lines(run.path / "metrics.jsonl") == [
        {"step": 1, "loss": 0.5, "eval/success": None},
        {"step": 2, "loss": 0.25, "gap": None, "tokens": 7},
    ]
    assert run.metrics() == json_lines(run.path / "metrics.jsonl")
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]


def test_episodes_are_lines(run: RunFolder) -> None:
    run.write_episodes(3, [episode("é\n\ud800"), episode("b")])
    run.write_episodes(4, [episode("c")], phase="eval")
    first, _, last = json_lines(run.path / "episodes.jsonl")
    assert first["schema"] == 2
    assert (first["step"], first["phase"], first["index"], first["group"], first["purified"]) == (3, "train", 4, 2, False)
    assert first["conversation"][1] == {"role": "assistant", "content": "é\n\ud800"}
    assert (last["step"], last["phase"]) == (4, "eval")


def test_every_documented_key_of_an_episode_is_there(run: RunFolder) -> None:
    from cleaner_env.agents import run_folder
    from cleaner_env.wrappers import records

    run.write_episodes(3, [episode("a")])
    documented: set[str] = set()
    for module in (run_folder, records):
        rows = (module.__doc__ or "").split("===\n")[1].splitlines()
        documented |= {name for row in rows for name in re.findall(r"\w+", row[:20])}
    assert set(json_lines(run.path / "episodes.jsonl")[0]) == documented


def test_a_checkpoint_is_a_model_directory_with_the_trainers_state(run: RunFolder, loaded: Any) -> None:
    generator = np.random.default_rng(3)
    state = {"steps_done": 20, "moments": [torch.ones(2)], "generator": generator.bit_generator.state}
    checkpoint = run.save_checkpoint(20, *loaded, state)
    assert checkpoint == run.path / "checkpoints" / "step-000020"
    model, _ = load_model(checkpoint)
    assert torch.equal(model.lm_head.weight, loaded[0].lm_head.weight)
    loaded = load_trainer_state(checkpoint)
    assert loaded["steps_done"] == 20
    assert torch.equal(loaded["moments"][0], torch.ones(2))
    restored = np.random.default_rng()
    restored.bit_generator.state = loaded["generator"]
    assert restored.random() == generator.random()
    with pytest.raises(ConfigError, match=r"it has no trainer_state\.pt"):
        load_trainer_state(run.path)


def test_a_checkpoint_that_fails_leaves_nothing(run: RunFolder, loaded: Any) -> None:
    with pytest.raises(Exception, match="pickle"):
        run.save_checkpoint(20, *loaded, {"cannot be saved": lambda: None})
    assert list((run.path / "checkpoints").iterdir()) == []
    assert run.latest_checkpoint() is None


def test_checkpoints_are_replaced_ordered_and_thinned(run: RunFolder, loaded: Any) -> None:
    for step in (5, 1_000_000, 20):
        run.save_checkpoint(step, *loaded, {"version": 1})
    run.save_checkpoint(20, *loaded, {"version": 2})
    assert [path.name for path in run.checkpoints()] == ["step-000005", "step-000020", "step-1000000"]
    assert load_trainer_state(run.checkpoints()[1]) == {"version": 2}
    run.save_checkpoint(1_000_001, *loaded, {})
    run.prune_checkpoints(2, "eval/success")
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["step-1000000", "step-1000001"]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ((0.5, 0.9, 0.9, 0.1, 0.2), [3, 5]),
        ((0.5, math.nan, None, 0.1, 0.2), [1, 5]),
        ((None, None, None, None, None), [5]),
        ((0.5, 0.1, 0.2, 0.1, 0.9), [5]),
    ],
)
def test_the_best_checkpoint_outlives_later_ones(run: RunFolder, loaded: Any, values: Any, kept: Any) -> None:
    for step, value in enumerate(values, start=1):
        run.log(step, {"eval/success": value} if value is not None else {})
        run.save_checkpoint(step, *loaded, {})
    run.prune_checkpoints(1, "eval/success")
    assert [path.name for path in run.checkpoints()] == [f"step-{step:06d}" for step in kept]


def test_reopening_drops_what_the_latest_checkpoint_does_not_know(run: RunFolder, loaded: Any) -> None:
    run.track(("tensorboard",), 1, "cleaner-env", {})
    for step in (1, 2, 3):
        run.log(step, {"loss": 1.0 / step})
        run.write_episodes(step, [episode(str(step))])
    run.save_checkpoint(2, *loaded, {})
    run.close()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # killed while writing
    (run.path / "checkpoints" / ".step-000004.abc").mkdir()
    with RunFolder.reopen(run.path) as again:
        assert [line["step"] for line in again.metrics()] == [1, 2]
        assert [line["step"] for line in json_lines(run.path / "episodes.jsonl")] == [1, 2]
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-000002"]
        again.track(("tensorboard",), 3, "cleaner-env", {})
        again.log(3, {"loss": 9.0})
        assert [line["loss"] for line in again.metrics()] == [1.0, 0.5, 9.0]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 9.0)]


def test_what_cannot_be_reopened(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no config\.toml"):
        RunFolder.reopen(tmp_path / "absent")
    with pytest.raises(ConfigError, match="still goes on in another process"):
        RunFolder.reopen(run.path)


def test_a_run_without_a_checkpoint_begins_again(run: RunFolder) -> None:
    run.log(0, {"loss": 1.0})
    run.write_episodes(1, [episode("a")])
    run.close()
    with RunFolder.reopen(run.path) as again:
        assert again.metrics() == json_lines(run.path / "episodes.jsonl") == []
        assert again.latest_checkpoint() is None


def test_curves_are_drawn_from_what_was_logged(run: RunFolder) -> None:
    run.log(1, {"eval/success": 0.25, "train/reward": math.nan})
    assert run.draw_curves() == run.path / "curves.png"
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not (run.path / ".curves.png").exists()
