"""Turns a worker's reply, which foreign code may have shaped, into an `Execution`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from cleaner_env.sandbox.protocol import CellException, Execution, Limits, Status

__all__ = ["execution_from_reply", "infrastructure_error"]

_STATUSES: Final = frozenset(get_args(Status))
_TEXT_LIMIT: Final = 70_000


def infrastructure_error(message: str, duration_s: float = 0.0) -> Execution:
    """The outcome of code that could not be run, through no fault of its own; ``stderr`` says why."""
    return Execution("infrastructure_error", stderr=message, duration_s=duration_s)


def execution_from_reply(reply: Mapping[str, object], limits: Limits, duration_s: float) -> Execution:
    """Takes over what is well-formed in a reply, cut to the limits; a reply without a known status is an outage."""
    status = reply.get("status")
    if not isinstance(status, str) or status not in _STATUSES:
        return infrastructure_error(f"the sandbox answered with the unknown status {str(status)[:80]!r}", duration_s)
    value, exit_code, signal = reply.get("value"), reply.get("exit_code"), reply.get("signal")
    return Execution(
        status=status,  # type: ignore[arg-type]  # Just checked.
        stdout=_text(reply.get("stdout"), limits.output_bytes),
        stderr=_text(reply.get("stderr"), limits.output_bytes),
        value=_text(value, _TEXT_LIMIT) if isinstance(value, str) else None,
        exception=_exception(reply.get("exception")),
        duration_s=duration_s,
        truncated=reply.get("truncated") is True,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        signal=_text(signal, 20) if isinstance(signal, str) else None,
    )


def _exception(fields: object) -> CellException | None:
    if not isinstance(fields, Mapping):
        return None
    return CellException(*(_text(fields.get(name), _TEXT_LIMIT) for name in ("name", "message", "traceback")))


def _text(value: object, limit: int) -> str:
    """A bounded text that can be encoded: lone surrogates are replaced."""
    return value[:limit].encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""
