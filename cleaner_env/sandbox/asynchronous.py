"""Awaits calls that block, in threads of their own: the event loop's own pool may hold as few as five."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["in_thread"]

_T = TypeVar("_T")
_THREADS: Final = 256  # Made one by one, as they are needed.
_executor: ThreadPoolExecutor | None = None


async def in_thread(function: Callable[..., _T], *arguments: object, on_cancel: Callable[[], object] | None = None) -> _T:
    """Calls a function in a thread and awaits its result.

    Args:
        function: What to call.
        *arguments: What to call it with.
        on_cancel: Called where the awaiting task is cancelled, to have the function return soon.
    """
    import asyncio  # It takes as long to import as the rest of the sandbox.
    from concurrent.futures import ThreadPoolExecutor

    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="cleaner-env-sandbox")
    try:
        return await asyncio.get_running_loop().run_in_executor(_executor, functools.partial(function, *arguments))
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        raise


def _forget_parent() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_forget_parent)
