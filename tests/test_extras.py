"""What needs an extra says which one, where none of them is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cleaner_env.errors import ConfigError, MissingExtraError
from cleaner_env.extras import EXTRAS, missing_packages, optional_packages, require_package

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
# None in sys.modules is what Python takes for a package that is not installed.
BARE = f"import sys; sys.modules.update(dict.fromkeys({sorted(sum(EXTRAS.values(), ()))!r}))\n"
COMMAND = "from cleaner_env.cli import main; main()"


def bare(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python in a base installation."""
    return subprocess.run(
        [sys.executable, "-c", BARE + code, *arguments], capture_output=True, text=True, cwd=cwd, check=False, timeout=120
    )


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["train"], "torch", "llm"),
        (["sft", "episodes.jsonl", "--model", "model", "--out", "new"], "torch", "llm"),
        (["models", "fetch", "smollm2"], "gguf", "gguf"),
        (["sandbox", "build"], "docker", "docker"),
        (["sandbox", "reap"], "docker", "docker"),
        (["sandbox", "describe", "docker"], "docker", "docker"),
        (["eval", "--policy", "noisy", "--sandbox", "docker"], "docker", "docker"),
    ],
)
def test_a_command_names_the_extra_it_needs(tmp_path: Path, arguments: list[str], package: str, extra: str) -> None:
    done = bare(COMMAND, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"error: .* needs the package {package}; install it with: pip install 'cleaner-env\[{extra}\]'\n", done.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import cleaner_env.agents.grpo", "llm"),
        ("import cleaner_env.agents.sft", "llm"),
        ("import cleaner_env.agents.learner", "llm"),
        ("import cleaner_env, gymnasium as gym; gym.make('CleanerAIME-v0', sandbox='docker')", "docker"),
        ("from cleaner_env.sandbox import make_sandbox; make_sandbox('docker')", "docker"),
    ],
)
def test_python_names_the_extra_it_needs(tmp_path: Path, code: str, extra: str) -> None:
    done = bare(code, cwd=tmp_path)
    assert done.stderr.splitlines()[-1].startswith("cleaner_env.errors.MissingExtraError: ")
    assert done.stderr.endswith(f"pip install 'cleaner-env[{extra}]'\n")


def test_what_needs_no_extra_works_without(tmp_path: Path) -> None:
    done = bare(COMMAND, "eval", "--policy", "noisy", "--episodes", "3", "--saar", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    doctor = bare(COMMAND, "doctor", cwd=tmp_path)
    assert doctor.returncode == 0, doctor.stderr
    assert "extras             none\n" in doctor.stdout
    assert all(f"without {extra}; for it: pip install 'cleaner-env[{extra}]'" in doctor.stdout for extra in EXTRAS)
    assert "sandbox docker     no: the docker sandbox needs the package docker" in doctor.stdout


def test_only_optional_packages_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModuleNotFoundError), optional_packages("this"):
        import no_such_package_anywhere  # noqa: F401
    with pytest.raises(MissingExtraError, match=r"^this needs the package peft"), optional_packages("this"):
        import peft.tuners  # noqa: F401
    with pytest.raises(MissingExtraError, match=r"^that needs the package peft") as caught:
        require_package("peft", "that")
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ImportError)
    assert missing_packages("lora") == ["peft"]


def test_the_extras_are_those_of_the_package() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"all", "dev"}
    for extra, packages in EXTRAS.items():
        listed = {re.split(r"[<>=]", requirement)[0].replace("-", "_") for requirement in extras[extra]}
        assert set(packages) == listed - {"cleaner_env[llm]"}
