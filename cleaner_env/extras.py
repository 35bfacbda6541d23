"""The optional packages, and the error that says how to install the one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from cleaner_env.errors import MissingExtraError

__all__ = ["EXTRAS", "missing_packages", "optional_packages", "require_package"]

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "llm": ("torch", "transformers", "safetensors", "matplotlib", "tensorboard"),
    "lora": ("peft",),
    "gguf": ("gguf", "accelerate"),
    "docker": ("docker",),
    "data": ("huggingface_hub", "pyarrow"),
    "math": ("math_verify",),
}
"""The modules that each extra brings. ``huggingface_hub`` comes with transformers too."""


@contextmanager
def optional_packages(purpose: str) -> Iterator[None]:
    """Turns the failed import of an optional package inside the ``with`` block into an error that names its extra.

    Args:
        purpose: What needs the package, as the beginning of a sentence.

    Raises:
        MissingExtraError: A package of `EXTRAS` is not installed.

    Example:
        >>> with optional_packages("training"):
        ...     import json
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not any(package in packages for packages in EXTRAS.values()):
            raise
        raise _missing(package, purpose) from None


def require_package(package: str, purpose: str) -> None:
    """Makes sure that an optional package is installed, without importing it.

    Raises:
        MissingExtraError: It is not.
    """
    if find_spec(package) is None:
        raise _missing(package, purpose)


def missing_packages(extra: str) -> list[str]:
    """Returns the modules of an extra that are not installed."""
    return [package for package in EXTRAS[extra] if find_spec(package) is None]


def _missing(package: str, purpose: str) -> MissingExtraError:
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    return MissingExtraError(f"{purpose} needs the package {package}; install it with: pip install 'cleaner-env[{extra}]'")
