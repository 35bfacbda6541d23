"""What the README shows does what it says."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rows = [{"problem": f"What is {i} squared?", "answer": f"{i * i:03}"} for i in range(12)]
    (tmp_path / "exam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "exam.json").write_text(json.dumps(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_examples_run_and_show_what_they_say(folder):
    names: dict = {}
    environment, by_path, purification, trainer, sandbox = blocks("python")
    exec(environment, names)
    assert names["info"]["verdict"] in ("correct", "incorrect")
    exec(by_path, names)
    assert len(names["env"].unwrapped.dataset.problems) == 12
    first, second = purification.split('conversation, *_, info = env.step("A typo.')
    exec(first, names)
    assert names["info"]["saar"]["phase"] == "lookahead"
    assert names["conversation"][-1]["content"] == "NameError: name 'prnt' is not defined"
    exec('conversation, *_, info = env.step("A typo.' + second, names)
    assert names["info"]["saar"]["phase"] == "shallow"
    assert [m["content"] for m in names["conversation"][-2:]] == ["Multiply.\n```python\nprint(6 * 7)\n```", "42"]
    names["env"].close()
    exec(trainer, names)
    printed = []
    exec(
        sandbox.replace("sandbox.describe()", "printed.append(session.run('print(x)').stdout)"),
        {**names, "printed": printed},
    )
    assert printed == ["[1]\n"]


def commands():
    for block in blocks("sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "cleaner":
                yield words[1:]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "cleaner_env.cli", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("file", ["exam.jsonl", "exam.json"])
def test_a_scripted_policy_on_all_of_an_aime_file(folder, file):
    (command,) = [words for words in commands() if "exam.jsonl" in words]
    done = run(*[word.replace("exam.jsonl", file) for word in command], "--saar", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["episodes"], result["problems"], result["infrastructure_errors"]) == (12, 12, 0)
    assert result["accuracy"] == 1.0
    assert 0 < result["first_attempt_error"] < 1


def test_every_command_of_the_readme_is_understood():
    listed = list(commands())
    assert {words[0] for words in listed} == {"train", "eval", "models", "replay", "view"}
    for words in listed:
        options = [word for word in words if word.startswith("--")]
        verb = words[:2] if words[0] == "models" else words[:1]
        done = run(*verb, "--help")
        assert done.returncode == 0
        assert all(option in done.stdout for option in options), (words, done.stdout)
