import json

import pytest
from typer.testing import CliRunner

from cleaner_env.cli.app import app
from cleaner_env.tasks import get_task

runner = CliRunner()


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))


def cleaner(*arguments):
    done = runner.invoke(app, ["data", *map(str, arguments)])
    assert done.exit_code == 0, (done.output, done.stderr)
    return done.stdout


def refused(*arguments):
    done = runner.invoke(app, ["data", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_list():
    rows = json.loads(cleaner("list", "--json"))
    by_name = {row["name"]: row for row in rows}
    assert by_name["livecodebench_v6"]["problems"] == 1055
    assert by_name["gpqa_diamond"]["gated"]
    assert by_name["dapo_math_17k"]["role"] == "training"
    assert next(row for row in rows if row["tasks"] == ["aime"])["problems"] >= 60
    table = cleaner("list")
    assert all(row["name"] in table for row in rows)


def test_show():
    shown = cleaner("show", "builtin", "--task", "gpqa", "--index", 3)
    assert "[user]" in shown
    assert "[answer]" not in shown
    problem = get_task("gpqa").load("builtin").problems[3]
    found = json.loads(cleaner("show", "builtin", "--task", "gpqa", "--id", problem.id, "--answer", "--json"))
    assert (found["id"], found["answer"]) == (problem.id, problem.answer)
    assert found["messages"] == list(get_task("gpqa").messages(problem))
    assert "[answer]" in cleaner("show", "generated_level1", "--answer", "--split", "test")


@pytest.mark.parametrize("task", ["aime", "gpqa", "livecodebench"])
def test_what_is_exported_is_read_back_the_same(task, tmp_path):
    path = tmp_path / "problems.jsonl"
    cleaner("export", "builtin", path, "--task", task)
    before, after = get_task(task).load("builtin"), get_task(task).load(str(path))
    assert after.fingerprint == before.fingerprint
    assert [task_messages(task, problem) for problem in after.problems] == [
        task_messages(task, problem) for problem in before.problems
    ]
    report = json.loads(cleaner("check", path, "--task", task, "--json"))
    assert report["fingerprint"] == before.fingerprint
    assert report["checked"] == report["problems"] == len(before.problems)
    assert "is there already; give --force" in refused("export", "builtin", path, "--task", task)
    cleaner("export", "builtin", path, "--task", task, "--force", "--limit", 2)
    assert len(path.read_text().splitlines()) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["problems.jsonl"]


def task_messages(task, problem):
    return get_task(task).messages(problem)


def test_check():
    assert "fingerprint" in cleaner("check", "builtin", "--task", "aime")
    report = json.loads(cleaner("check", "builtin", "--task", "arithmetic", "--limit", 50, "--json"))
    assert (report["checked"], report["problems"]) == (50, 100_000)


def test_check_counts_what_is_left_out(tmp_path):
    path = tmp_path / "pool.jsonl"
    rows = [{"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": t}} for t in ("2", "x", "2")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = json.loads(cleaner("check", path, "--task", "aime", "--json"))
    assert report["problems"] == 1
    assert report["left_out"] == {"the answer is no integer": 1, "it repeats another": 1}
    assert "left_out     the answer is no integer (1), it repeats another (1)\n" in cleaner("check", path, "--task", "aime")


def test_check_names_what_is_wrong(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "?", "answer": "many"}\n')
    assert "line 2: the answer must be an integer" in refused("check", path, "--task", "aime")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "builtin"], "'builtin' does not say which task's problems are meant; give --task"),
        (["show", "open_agentrl_30k"], "give --task, one of aime, gpqa, livecodebench"),
        (["show", "aime2024"], "'aime2024' is not in the cache and HF_HUB_OFFLINE is set"),
        (["check", "livecodebench_v6:v6"], "'livecodebench_v6' is not in the cache"),
        (["show", "builtin", "--task", "gpqa", "--index", "60"], "--index must be 0 to 59"),
        (["show", "builtin", "--task", "gpqa", "--id", "none"], "no problem has the id 'none'"),
        (["show", "builtin", "--task", "chess"], "unknown task 'chess'"),
        (["export", "generated", "x.jsonl", "--task", "aime"], "say how many with --limit"),
        (["export", "builtin", "x.csv", "--task", "aime"], "must end in .jsonl"),
        (["export", "builtin", "x.jsonl", "--task", "aime", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["check", "generated", "--task", "aime", "--limit", "-5"], "--limit must be at least 1, got -5"),
        (["check", "builtin", "--task", "aime", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["export", "builtin", "none/x.jsonl", "--task", "aime"], "cannot write 'none/x.jsonl': No such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not list(tmp_path.iterdir())
