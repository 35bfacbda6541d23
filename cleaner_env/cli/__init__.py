"""The ``cleaner`` command: one file per verb. Heavy imports stay inside the commands, so that help is fast."""

from cleaner_env.cli.app import main

__all__ = ["main"]
