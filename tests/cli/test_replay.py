import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cleaner_env.cli.app import app
from cleaner_env.wrappers.records import read_episodes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    cleaner(
        "eval", "--policy", "noisy", "--episodes", "12", "--seed", "1", "--saar", "--out", str(folder / "episodes.jsonl")
    )
    cleaner("eval", "--policy", "noisy", "--episodes", "8", "--seed", "1", "--out", str(folder / "episodes.jsonl"))
    return folder


def cleaner(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    return done.stderr


def report(run: Path, *options: str) -> dict[str, object]:
    value: dict[str, object] = json.loads(cleaner("replay", str(run), *options, "--json"))
    return value


def test_the_recorded_rule_changes_nothing(run: Path) -> None:
    same = report(run, "--recorded", "purified")
    assert (same["episodes"], same["episodes_changed"], same["changes"]) == (12, 0, [])
    assert same["before"] == same["after"] != {}


def test_raw_episodes_are_purified(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "replayed.jsonl"
    changed = report(run, "--recorded", "raw", "--threshold", "1", "--out", str(out))
    records = list(read_episodes(out))
    failed = sum(turn.tool_status == "error" for record in records for turn in record.turns)
    assert failed > 0
    assert changed["before"] == {}
    assert len(records) == changed["episodes"] == 8
    assert sum(len(record.repairs) for record in records) == sum(changed["after"].values())  # type: ignore[attr-defined]
    assert all(record.purified for record in records)
    standing = [message["content"] for record in records for message in record.conversation]
    assert not any("NameError" in content for content in standing)


def test_tables_say_what_changed(run: Path) -> None:
    text = " ".join(cleaner("replay", str(run), "--strategy", "deep").split())
    assert "replayed with deep, threshold 0.5, characters, 3 retries" in text
    assert "of 20 episodes have another history" in text
    assert "kept" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threshold", "2"], "similarity_threshold must lie in [0, 1], got 2.0"),
        (["--similarity", "cosine"], "similarity must be one of characters, tokens, lines, ast, reference"),
        (["--strategy", "x"], "strategy must be one of"),
        (["--recorded", "some"], "--recorded must be all, purified or raw, got 'some'"),
        (["--out", "."], "exists; give a new file"),
    ],
)
def test_bad_options_are_refused(run: Path, options: list[str], words: str) -> None:
    assert words in refused("replay", str(run), *options)


def test_what_is_no_recording_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    assert "does not exist" in refused("replay", str(tmp_path / "none.jsonl"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"schema": 2}\n')
    assert "broken.jsonl:1: the episode has no" in refused("replay", str(broken), "--out", str(tmp_path / "out.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.jsonl"]
