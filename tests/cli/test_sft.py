from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cleaner_env.agents.models import load_model
from cleaner_env.cli.app import app


def cleaner(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("episodes") / "episodes.jsonl"
    assert cleaner("eval", "--policy", "noisy", "--saar", "--episodes", "30", "--out", file).exit_code == 0
    return file


def test_fine_tuning_makes_what_was_said_likelier(tmp_path: Path, model_directory: Path, episodes: Path) -> None:
    out = tmp_path / "models" / "started"
    options = ["--epochs", "6", "--learning-rate", "0.003", "--batch-tokens", "3000"]
    done = cleaner("sft", episodes, "--model", model_directory, "--out", out, *options)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{out}\n"
    assert "30 used" in done.stderr
    losses = [float(line.split("loss ")[1].split()[0]) for line in done.stderr.splitlines() if "loss" in line]
    assert losses[-1] < losses[0] - 1
    load_model(out)
    assert [path.name for path in out.parent.iterdir()] == ["started"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--keep", "best"], "--keep must be one of correct, answered, all, got 'best'"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
        (["--learning-rate", "inf"], "learning_rate must be positive and finite, got inf"),
        (["--batch-tokens", "5"], "has no episode to learn from with --keep correct and at most 5 tokens: 30 too long"),
        (["--out", "."], ". exists already; delete it or choose another directory"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, model_directory: Path, episodes: Path, options: list[str], words: str
) -> None:
    done = cleaner("sft", episodes, "--model", model_directory, "--out", tmp_path / "new", *options)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []
