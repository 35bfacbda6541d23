"""Loads a language model from a local directory in the Hugging Face layout."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cleaner_env.errors import ConfigError, ModelError
from cleaner_env.extras import optional_packages

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


LoadedModel: TypeAlias = "tuple[PreTrainedModel, PreTrainedTokenizerBase]"

__all__ = ["LoadedModel", "check_new_directory", "load_model", "quiet_transformers", "resolve_device", "save_model"]

_LOCAL: Final = {"local_files_only": True, "trust_remote_code": False}
_SHOWN: Final = 200


def load_model(directory: str | Path, dtype: str | torch.dtype = "auto", device: torch.device | str = "cpu") -> LoadedModel:
    """Loads a causal language model and its tokenizer, in evaluation mode and on the CPU.

    Nothing is downloaded, no code out of the directory is run, and weights are read from ``safetensors`` only.

    Args:
        directory: A directory as ``save_pretrained`` writes it, with a tokenizer that has a chat template.
        dtype: A ``torch.dtype`` or its name; ``"auto"`` keeps the one that the weights were saved in.
        device: Where the model is put.

    Raises:
        ModelError: The directory is none, or does not hold a whole model; the message is one line that says which part.
        MissingExtraError: torch or transformers is not installed.
    """
    directory = Path(directory)
    _check_layout(directory)
    with optional_packages("loading a model"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

    if dtype != "auto" and not isinstance(getattr(torch, str(dtype).removeprefix("torch."), None), torch.dtype):
        raise ModelError(f"dtype must be auto or a torch dtype such as bfloat16, got {dtype!r}")
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(directory, **_LOCAL)
    except Exception as error:  # the library raises anything from KeyError to SafetensorError on malformed files
        raise ModelError(f"the tokenizer in {directory} cannot be loaded: {_first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer in {directory} has no chat template, so conversations cannot be put to the model; "
            "use an instruction-tuned model, or add a chat_template.jinja to the directory"
        )
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, use_safetensors=True, output_loading_info=True, **_LOCAL
            )
    except Exception as error:
        raise ModelError(f"the model in {directory} cannot be loaded: {_first_line(error)}") from error
    model, report = loaded
    _check_weights(directory, report)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ModelError(
            f"the tokenizer in {directory} knows {len(tokenizer)} tokens, more than the model's "
            f"{model.get_input_embeddings().num_embeddings}; the two do not belong together"
        )
    model.eval().to(device)
    return model, tokenizer


def resolve_device(name: str) -> torch.device:
    """Returns the device of a name; ``"auto"`` is the first GPU where there is one, and the CPU elsewhere.

    Raises:
        ConfigError: There is no such device.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # CPU builds of torch assert
        raise ConfigError(f"there is no device {name!r}; use auto, cpu, or cuda where there is a GPU") from None
    return device


def save_model(directory: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Writes a model and its tokenizer as a directory that `load_model` takes; it appears only once it is whole.

    Args:
        directory: Must not exist; the folders above it are made if need be.
        model: Saved with ``save_pretrained``.
        tokenizer: Likewise.

    Returns:
        The directory.

    Raises:
        ConfigError: The directory exists.
    """
    target = Path(directory)
    check_new_directory(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with quiet_transformers():
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
        unfinished.replace(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def check_new_directory(directory: str | Path) -> None:
    """Makes sure that `save_model` may write to a directory, before costly work.

    Raises:
        ConfigError: It exists.
    """
    if Path(directory).exists():
        raise ConfigError(f"{directory} exists already; delete it or choose another directory")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences the log and the progress bars of ``transformers``; what they would warn of is checked and raised here."""
    from transformers.utils import logging as library_logging

    level, bars = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity(logging.CRITICAL)
    library_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library_logging.set_verbosity(level)
        if bars:
            library_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _check_layout(directory: Path) -> None:
    way_out = "give a local model directory (`cleaner models fetch smollm2` makes one)"
    if directory.is_file():
        raise ModelError(f"{directory} is a file, not a model directory; {way_out}")
    if not directory.is_dir():
        raise ModelError(f"there is no model directory {directory}; {way_out}")
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} is no model directory, it has no config.json; {way_out}")
    if not any(directory.glob("*.safetensors")):
        pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pt")) or any(directory.glob("*.pth"))
        reason = "its weights are pickled, which is not safe to load" if pickled else "it has no weights"
        raise ModelError(f"{directory} has no *.safetensors file: {reason}; save the model with save_pretrained")


def _check_weights(directory: Path, report: dict[str, Any]) -> None:
    """Refuses weights that the library would silently have replaced by random numbers."""
    missing = sorted(report["missing_keys"])
    mismatched = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    for names, fault in ((missing, "are missing"), (mismatched, "have another shape than config.json says")):
        if names:
            raise ModelError(f"the weights in {directory} are incomplete: {len(names)} {fault}, such as {names[0]}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:_SHOWN]}" if lines else type(error).__name__
