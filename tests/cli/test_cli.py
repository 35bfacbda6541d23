"""Runs the installed command as a user does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleaner_env.agents.cold_start import RECIPE
from cleaner_env.agents.models import load_model
from cleaner_env.agents.run_folder import RunFolder, load_trainer_state

COMMAND = [sys.executable, "-c", "from cleaner_env.cli import main; main()"]
ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
SMALL = ["rollout.problems=1", "rollout.group_size=2", "rollout.turn_tokens=8", "evaluation.episodes=2", "runs=runs"]


def cleaner(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )


def refused(*arguments: str | Path, cwd: Path | None = None) -> str:
    done = cleaner(*arguments, cwd=cwd)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_help_teaches_and_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], "--help"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    for expected in ("Examples:", "cleaner train saar.share=0", "cleaner eval --policy oracle", "models", "--version"):
        assert expected in done.stdout
    for heavy in ("torch", "transformers", "matplotlib", "pydantic"):
        assert f" {heavy}\n" not in done.stderr


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        (["train"], ["OPTION=VALUE", "--config", "--dry-run", "cleaner train --config run.toml saar.share=0 seed=1"]),
        (["eval"], ["--model", "--policy", "--saar", "--no-saar", "--json", "cleaner eval --policy oracle"]),
        (["models"], ["fetch"]),
        (["models", "fetch"], ["smollm2", "--to", "Apache-2.0"]),
    ],
)
def test_every_verb_has_help(verb: list[str], expected: list[str]) -> None:
    done = cleaner(*verb, "--help")
    assert done.returncode == 0
    for text in expected:
        assert text in done.stdout


def test_version() -> None:
    from cleaner_env import __version__

    assert cleaner("--version").stdout == f"cleaner-env {__version__}\n"


def test_an_oracle_on_an_exam_file(tmp_path: Path) -> None:
    exam = tmp_path / "exam.json"
    exam.write_text(json.dumps([{"problem": "What is 6 * 7?", "answer": 42}, {"problem": "What is 1 + 1?", "answer": "2"}]))
    done = cleaner("eval", "--policy", "oracle", "--env", "CleanerAIME-v0", "--dataset", exam)
    assert done.returncode == 0, done.stderr
    for row in ("2 problems", "split", "seed", "accuracy", "100.0 %", "first-attempt tool errors", "turns per episode"):
        assert row in done.stdout
    assert done.stderr == ""


def test_json_is_one_object(model_directory: Path) -> None:
    options = ["--episodes", "3", "--max-tokens", "8", "--context", "600", "--seed", "1", "--saar", "--json"]
    done = cleaner("eval", "--model", model_directory, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["player"], result["saar"], result["seed"]) == (str(model_directory), True, 1)
    assert result["episodes"] + result["infrastructure_errors"] == 3
    assert result["tokens"] >= 1


def test_wrong_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    assert "give either --model DIRECTORY or --policy NAME" in refused("eval")
    assert "unknown policy 'greedy'; choose one of oracle" in refused("eval", "--policy", "greedy")
    assert "there is no model directory nowhere" in refused("eval", "--model", "nowhere")
    assert "has no config.json" in refused("eval", "--model", tmp_path)
    assert "'nothing'" in refused("eval", "--policy", "oracle", "--env", "CleanerAIME-v0", "--dataset", "nothing")
    assert "'CleanerChess-v0'" in refused("eval", "--policy", "oracle", "--env", "CleanerChess-v0")
    assert "unknown option saar.shar; did you mean saar.share?" in refused("train", "saar.shar=0", cwd=tmp_path)
    assert "there is no model directory nowhere" in refused("train", "model=nowhere", cwd=tmp_path)
    assert "unknown data set 'nothing'" in refused("train", "env.dataset=nothing", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_problem_longer_than_the_models_context_is_an_outcome(tmp_path: Path, model_directory: Path) -> None:
    exam = tmp_path / "exam.jsonl"
    exam.write_text(json.dumps({"problem": "a + b " * 2000, "answer": 1}) + "\n")
    done = cleaner("eval", "--model", model_directory, "--env", "CleanerAIME-v0", "--dataset", exam, "--json")
    assert json.loads(done.stdout)["stop_conditions"] == {"context_length": 1}


def test_a_malformed_problem_file_is_named_with_its_line(tmp_path: Path) -> None:
    exam = tmp_path / "exam.jsonl"
    exam.write_text('{"problem": "a", "answer": 1}\n{"problem": "b"}\n')
    message = refused("eval", "--policy", "oracle", "--env", "CleanerAIME-v0", "--dataset", exam)
    assert str(exam) in message
    assert "2" in message.replace(str(exam), "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fly"], "no such command 'fly'; see cleaner --help"),
        (["models", "fetch", "gpt5"], "invalid value for 'name': 'gpt5' is not one of 'smollm2'; see cleaner models fetch"),
        (["eval", "--policy"], "option '--policy' requires an argument"),
        (["eval", "--policy", "noisy", "more"], "(more); see cleaner eval --help"),
        (["eval", "--episodes", "many"], "'--episodes': input should be a valid integer"),
        (["eval", "--episodes", "many"], ', got "many"; see cleaner eval --help'),
        (["eval", "--policy", "noisy", "--parallel", "0"], "'--parallel': input should be greater than or equal to 1, got"),
        (
            ["eval", "--policy", "noisy", "--temperature", "-1"],
            "'--temperature': input should be greater than or equal to 0",
        ),
        (["eval", "--policy", "noisy", "--context", "3"], "--context must exceed --max-tokens, which is 512, got 3"),
        (["eval", "--policy", "noisy", "--top-p", "0"], "--top-p must be above 0, got 0"),
        (["replay"], "missing argument 'run'; see cleaner replay --help"),
        (["train", "--steps", "3"], "no such option: --steps"),
        (["train", "--steps", "3"], "options of a run are written without dashes, such as steps=3"),
        (["train", "steps", "3"], "an override must read option=value, such as seed=1, got 'steps'"),
        (["train", "--resume", "runs/none"], "runs/none does not exist; give the folder"),
        (["train", "--resume", "."], ". is no run folder, it has no config.toml"),
    ],
)
def test_usage_errors_are_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in refused(*arguments, cwd=tmp_path)


@pytest.mark.parametrize("arguments", [[], ["models"], ["sandbox"], ["data"]])
def test_nothing_to_do_shows_the_help(arguments: list[str]) -> None:
    done = cleaner(*arguments)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: cleaner" in done.stdout


def test_a_sandbox_that_cannot_be_had_is_an_error_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    away = f"unix://{tmp_path}/none.sock"
    done = cleaner("eval", "--policy", "noisy", "--sandbox", "docker", "--episodes", "2", DOCKER_HOST=away)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: no Docker engine answers at {away}: ")


def test_infrastructure_errors_have_exit_code_1(tmp_path: Path) -> None:
    empty_index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    done = cleaner("models", "fetch", "smollm2", "--to", tmp_path / "model", **empty_index)
    assert done.returncode == 1
    assert "error: pip could not download" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_debug_switch_shows_tracebacks() -> None:
    done = cleaner("eval", CLEANER_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigError: give either --model" in done.stderr


def test_a_dry_run_prints_a_config_that_reproduces_itself(tmp_path: Path) -> None:
    first = cleaner("train", "--dry-run", "saar.share=0.25", "steps=7", "name=a run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "share = 0.25" in first.stdout
    config = tmp_path / "run.toml"
    config.write_text(first.stdout)
    assert cleaner("train", "--dry-run", "--config", config, cwd=tmp_path).stdout == first.stdout
    assert list(tmp_path.iterdir()) == [config]


def test_a_training_run(tmp_path: Path, model_directory: Path) -> None:
    shutil.copytree(
        model_directory, tmp_path / "models" / f"tiny-v{RECIPE}-seed0"
    )  # where an earlier run's cold start is looked for
    done = cleaner("train", "steps=2", "evaluation.every=1", "name=first", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"begins with models/tiny-v{RECIPE}-seed0, made by an earlier run" in done.stderr
    assert done.stdout == "runs/first\n"
    assert "step 2/2" in done.stderr
    run = RunFolder(tmp_path / "runs" / "first")
    assert [line["step"] for line in run.metrics()] == [0, 1, 2]
    assert all("eval/success" in line for line in run.metrics())
    assert {path.name for path in run.path.iterdir()} == {
        "checkpoints",
        "config.toml",
        "curves.png",
        "episodes.jsonl",
        "metrics.jsonl",
        "tensorboard",
    }
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    load_model(checkpoint)
    assert load_trainer_state(checkpoint)["steps_done"] == 2


@pytest.fixture
def running(tmp_path: Path, model_directory: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["train", f"model={model_directory}", "steps=100000", "name=long", *SMALL]
    process = subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def test_ctrl_c_ends_a_run_with_a_checkpoint(tmp_path: Path, running: subprocess.Popen[str]) -> None:
    run = RunFolder(tmp_path / "runs" / "long")
    deadline = time.monotonic() + 60
    while len(run.metrics()) < 2:
        assert running.poll() is None, "the run ended before it was interrupted"
        assert time.monotonic() < deadline, "the run never took a step"
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "stopping after this step" in errors
    assert "Traceback" not in errors
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    load_model(checkpoint)
    assert load_trainer_state(checkpoint)["steps_done"] == run.metrics()[-1]["step"]
