"""What the model is shown of an execution."""

from __future__ import annotations

from typing import Literal

from cleaner_env.sandbox import Execution, Limits

__all__ = ["cut_middle", "describe_execution"]


def describe_execution(
    execution: Execution, limits: Limits, error_detail: Literal["traceback", "message"], max_chars: int
) -> str:
    """Writes the tool message of an execution: its output, the value of its last expression, and its error.

    Nothing in it depends on the clock, so equal executions give equal messages.

    Args:
        execution: What happened.
        limits: The limits it ran under, for messages about them.
        error_detail: ``"traceback"`` for whole tracebacks, ``"message"`` for their last line.
        max_chars: Characters of output and of error shown, each; the middle of longer text is cut.

    Example:
        >>> describe_execution(Execution("ok", stdout="42\\n"), Limits(), "message", 1000)
        '42'
        >>> describe_execution(Execution("timeout"), Limits(wall_s=4), "message", 1000)
        'Timeout: the code ran longer than 4 s and was stopped'
    """
    output = "\n".join(part for part in (execution.stdout.rstrip("\n"), execution.stderr.rstrip("\n")) if part)
    parts = [cut_middle(output, max_chars)] if output else []
    if execution.ok:
        if execution.value is not None:
            parts.append(cut_middle(execution.value, max_chars))
    else:
        parts.append(cut_middle(_describe_failure(execution, limits, error_detail), max_chars))
    return "\n".join(parts) or "(no output)"


def _describe_failure(execution: Execution, limits: Limits, error_detail: Literal["traceback", "message"]) -> str:
    exception = execution.exception
    if execution.status == "timeout":
        return f"Timeout: the code ran longer than {limits.wall_s:g} s and was stopped"
    if execution.status == "oom":
        return f"MemoryError: the code used more than {limits.memory_mb} MiB"
    if execution.status == "output_limit":
        return f"OutputLimit: the code printed more than {limits.output_bytes} bytes and was stopped"
    if exception is not None:
        if error_detail == "traceback" and exception.traceback:
            return exception.traceback.rstrip("\n")
        return f"{exception.name}: {exception.message}" if exception.message else exception.name
    if execution.status == "killed":
        return f"Killed: the interpreter died of {execution.signal or 'a signal'}"
    return f"Exit: the code ended the interpreter with exit code {execution.exit_code}"


def cut_middle(text: str, max_chars: int) -> str:
    """Returns a text of about ``max_chars`` characters at most: the middle of a longer one gives way to a note.

    Example:
        >>> cut_middle("a" * 5 + "b" * 10 + "c" * 5, 10)
        'aaaaa\\n[... 10 characters cut ...]\\nccccc'
    """
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    tail = max_chars - head
    return f"{text[:head]}\n[... {len(text) - max_chars} characters cut ...]\n{text[-tail:]}"
