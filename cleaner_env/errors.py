"""The exceptions this package raises.

Three families are kept apart, because each is somebody else's to mend:

* *Model errors* (a cell that raises, a call that does not parse) are never exceptions here. They are values: a status in
  `Execution`, a key of ``info``.
* *User errors* derive from `UsageError`: a wrong option, file or action. The message is one line that quotes the value and
  says what to do.
* *Infrastructure errors* derive from `InfrastructureError`: a sandbox or an engine that died. They are retried, reported,
  and never turned into a reward.
"""

from __future__ import annotations

__all__ = [
    "CleanerError",
    "ConfigError",
    "DataError",
    "InfrastructureError",
    "InvalidActionError",
    "MissingExtraError",
    "ModelError",
    "SandboxError",
    "UsageError",
]


class CleanerError(Exception):
    """Base of every exception raised by this package."""


class UsageError(CleanerError, ValueError):
    """The caller gave something that cannot be used."""


class ConfigError(UsageError):
    """An option is unknown, or its value is of the wrong type or out of range."""


class MissingExtraError(ConfigError, ImportError):
    """A package that only an extra brings is not installed; the message says how to install it."""


class DataError(UsageError):
    """A data set is unknown, or a problem file is malformed (the message names the line)."""


class ModelError(UsageError):
    """A model directory is missing or is not a loadable model."""


class InvalidActionError(UsageError, TypeError):
    """An action is not a ``str``."""


class InfrastructureError(CleanerError, RuntimeError):
    """Something underneath an episode failed; the model is not to blame."""


class SandboxError(InfrastructureError):
    """The sandbox could not be started, or died and could not be replaced."""
