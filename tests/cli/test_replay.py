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
        (["--on-errors", "error,nope"], "on_errors must be among"),
        (["--out", "."], "exists; give a new file"),
    ],
)
def test_bad_options_are_refused(run: Path, options: list[str], words: str) -> None:
    assert words in refused("replay", str(run), *options)


def test_only_chosen_errors_are_repaired(run: Path) -> None:
    assert report(run, "--on-errors", "timeout,oom")["after"] == {}


def test_what_records_say_is_printed_and_not_obeyed(run: Path, tmp_path: Path) -> None:
    episode = json.loads((run / "episodes.jsonl").read_bytes().splitlines()[0])
    hostile = tmp_path / "hostile.jsonl"
    # Every failed call is kept by this rule: the repair that is claimed makes the problem one of the examples.
    claim = {"turn": 0, "raw_turns": 1, "attempts": 1, "outcome": "deep", "hidden_tokens": 0, "logprob_gap": None}
    for name in ("\x1b]0;owned\x1b\\\x1b[31mRED", "\ud800x", "[bold]x[/bold]\u202e"):
        episode |= {"problem_id": name, "repairs": [claim | {"similarity": 0.5}]}
        with hostile.open("a") as lines:
            lines.write(json.dumps(episode) + "\n")
    text = cleaner("replay", str(hostile), "--strategy", "none")
    assert "\x1b" not in text
    assert all(shown in text for shown in ("?]0;owned?", "?x", "[bold]x[/bold]?"))


def test_numbers_that_no_float_holds_are_refused(run: Path, tmp_path: Path) -> None:
    episode = json.loads((run / "episodes.jsonl").read_bytes().splitlines()[0])
    episode["turns"][0]["seconds"] = 10**400
    large = tmp_path / "large.jsonl"
    large.write_text(json.dumps(episode) + "\n")
    for command in ("view", "replay"):
        assert "turns[0].seconds must be a number or null, got one too large for a float" in refused(command, str(large))
    episode["turns"][0]["seconds"] = 1e308
    episode["turns"].append(episode["turns"][0])
    large.write_text(json.dumps(episode) + "\n")
    cleaner("view", str(large))


@pytest.mark.parametrize("depth", [400, 700, 900])
def test_values_nested_too_deeply_to_be_written_are_refused(run: Path, tmp_path: Path, depth: int) -> None:
    line = (run / "episodes.jsonl").read_text().splitlines()[0]
    nested = tmp_path / "nested.jsonl"
    nested.write_text(
        line.replace('"info": {', '"info": {"extracted_answer": ' + "[" * depth + "]" * depth + ", ", 1) + "\n"
    )
    cleaner("view", str(nested))
    done = CliRunner().invoke(app, ["replay", str(nested), "--out", str(tmp_path / "out.jsonl")])
    assert done.exit_code in (0, 2)
    assert done.exit_code == 0 or "nested too deeply" in done.stderr


def test_a_file_without_episodes_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = CliRunner().invoke(app, ["view", str(tmp_path / "empty.jsonl")])
    assert (done.exit_code, "empty.jsonl has no episodes yet" in done.stderr) == (0, True)
    (tmp_path / "exam.csv").write_text("id,answer\n1,2\n")
    assert "exam.csv:1: no JSON" in refused("view", str(tmp_path / "exam.csv"))
    (tmp_path / "greeting.jsonl").write_text("hello")
    assert "greeting.jsonl:1: no JSON" in refused("view", str(tmp_path / "greeting.jsonl"))
    for path in ("x" * 300, str(tmp_path / "empty.jsonl")):
        refused("view", path, "--out", str(tmp_path / ("x" * 300)))


def test_what_is_no_recording_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    assert "does not exist" in refused("replay", str(tmp_path / "none.jsonl"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"schema": 2}\n')
    assert "broken.jsonl:1: the episode has no" in refused("replay", str(broken), "--out", str(tmp_path / "out.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.jsonl"]
