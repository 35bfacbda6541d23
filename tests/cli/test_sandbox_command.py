"""Runs ``cleaner sandbox`` and ``cleaner doctor`` as a user does; with an engine they are tried in ``tests/sandbox``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from cleaner_env.cli import main; main()"]


def cleaner(*arguments: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command where no engine answers."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=120)


def test_describe_says_what_a_sandbox_is(tmp_path) -> None:
    done = cleaner("sandbox", "describe", "--json", tmp_path=tmp_path)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["backend"], facts["security_boundary"]) == (0, "local", False)
    text = cleaner("sandbox", "describe", "local", tmp_path=tmp_path).stdout
    assert f"network            {facts['network']}\n" in text


def test_doctor_tries_the_sandboxes(tmp_path) -> None:
    done = cleaner("doctor", tmp_path=tmp_path)
    assert done.returncode == 0
    assert "sandbox local      works" in done.stdout
    assert "no security boundary" in done.stdout
    assert "sandbox docker     no: " in done.stdout


def test_without_an_engine_commands_say_so_in_one_line(tmp_path) -> None:
    for arguments in (("sandbox", "build"), ("sandbox", "describe", "docker"), ("sandbox", "reap")):
        done = cleaner(*arguments, tmp_path=tmp_path)
        assert done.returncode in (1, 2), done
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
        assert "docker" in done.stderr.lower()
