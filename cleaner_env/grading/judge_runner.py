"""Runs tests inside the sandbox: one forked process per test, from an interpreter that nothing has touched.

The host sends the source of this file to a session and imports nothing from it. The runner holds no test: inputs lie in
standard input, each after its length, and only the process of a test reads its own. Expected outputs never come here.

The runner cannot be looked into by what it runs, and clears away what a test leaves: processes, files, shared memory.
Standard library only.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from typing import Any, NoReturn
from unittest import mock

_NAMES_IN_SCOPE = """
from typing import *
import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator, random, re, statistics, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, groupby, pairwise, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, perm, pi, prod, sqrt
"""
_LIVECODEBENCH_NAMES = """
from string import *; from re import *; from datetime import *; from collections import *; from heapq import *
from bisect import *; from copy import *; from math import *; from random import *; from statistics import *
from itertools import *; from functools import *; from operator import *; from io import *; from sys import *
from json import *; from builtins import *; from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, operator
import io, sys, json
"""
_RECURSION_LIMIT = 50_000
_LIVECODEBENCH_DIGITS = 50_000
_LENGTH_BYTES = 12
_OUT_OF_MEMORY = 137
_PATIENCE_S = 5.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_IPC_RMID = 0
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446  # Landlock's, the same on every architecture.
_WRITE_FILE, _READ_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_SCOPE_SIGNAL = 1 << 1
_PATH_BENEATH = 1
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/nix/store")
_PACKAGE = "cleaner_env"
_IS_LINUX = sys.platform == "linux"

_libc = ctypes.CDLL(None) if _IS_LINUX else None
_dumps, _loads = json.dumps, json.loads
_names: dict[str, Any] = {}
_ruleset = -1
_statuses: dict[int, int] = {}  # Of the processes that have been waited for.


class DirtyError(Exception):
    """What a test left cannot be cleared away here; the session has to be rolled back."""


def prepare(own_memory: bool) -> None:
    """Runs once per session, whose later cells start from here.

    Args:
        own_memory: Whether shared memory is this session's alone.
    """
    global _ruleset
    exec(_NAMES_IN_SCOPE, _names)
    _set_traceable(False)
    _ruleset = _make_ruleset(own_memory)
    gc.freeze()  # So that what a test leaves can be collected at its end without a look at all that was here before.


def run_tests(order: str) -> NoReturn:
    """Runs tests and writes one JSON line each: status, output and seconds.

    Args:
        order: JSON with ``code``, ``function``, ``compatible``, ``time_limit_s``, ``output_bytes``, ``stop_early``, and
            ``own_memory`` and ``own_ipc``, which say whether shared memory is this session's alone.
    """
    task = _loads(order)
    _set_traceable(False)
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _make_limits_final()
    try:
        while length := os.read(0, _LENGTH_BYTES):
            if not _run_test(task, int(length)) and task["stop_early"]:
                break
            os.lseek(0, int(length), os.SEEK_CUR)
            _clear_away(task)
    except DirtyError:
        pass
    os._exit(0)


def _make_limits_final() -> None:
    """Keeps a test from raising its limits, or this process's."""
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        soft = resource.getrlimit(limit)[0]
        resource.setrlimit(limit, (soft, soft))
    if hasattr(resource, "RLIMIT_MSGQUEUE"):
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))  # Such queues could not be found to be cleared away.


def _make_ruleset(own_memory: bool) -> int:
    """Makes the Landlock rules that tests run under; -1 where the kernel cannot.

    They may read what an interpreter needs, but neither the files of the user, a data set among them, nor this package,
    which holds tests; they may write in the session's folders alone. Nor can they look into, or signal, any process from
    before.
    """
    if _libc is None:
        return -1
    version = _libc.syscall(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 2:  # The first cannot allow files to be moved between folders.
        return -1
    write = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    everything = _READ_FILE | write | _REMOVE_AND_MAKE | _REFER
    size = 24 if version >= 6 else 8
    attributes = struct.pack("QQQ", everything, 0, _SCOPE_SIGNAL)
    ruleset = _libc.syscall(_SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return -1
    hidden = [os.path.join(os.path.realpath(folder), _PACKAGE) for folder in sys.path]
    for root in {os.path.realpath(root) for root in (sys.prefix, sys.base_prefix, *_SYSTEM)}:
        _allow(ruleset, root, _READ_FILE, hidden)
    _allow(ruleset, "/dev", _READ_FILE | write, ["/dev/shm"])
    for folder in (os.getcwd(), os.environ["TMPDIR"], *(("/dev/shm",) if own_memory else ())):
        _allow(ruleset, folder, everything, [])
    return int(ruleset)


def _allow(ruleset: int, path: str, access: int, hidden: list[str]) -> None:
    """Allows access to all beneath a path but what is hidden."""
    if path in hidden or _libc is None:
        return
    if any(folder.startswith(path.rstrip("/") + "/") for folder in hidden):
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                _allow(ruleset, os.path.join(path, name), access, hidden)
        return
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        mask = access if os.path.isdir(path) else access & (_READ_FILE | _WRITE_FILE | _TRUNCATE)
        _libc.syscall(_SYS_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", mask, fd), 0)
        os.close(fd)


def _run_test(task: dict[str, Any], length: int) -> bool:
    """Runs a test and reports; returns whether it ended well, and keeps nothing, for the next is forked from here."""
    reading, writing = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run_child(task, length, writing)
    os.close(writing)
    output, cause = _collect(pid, reading, started + task["time_limit_s"], task["output_bytes"])
    os.close(reading)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    if pid not in _statuses:
        os.kill(pid, signal.SIGKILL)  # It may have no group of its own yet.
        _statuses[pid] = os.waitpid(pid, 0)[1]
    status = _statuses.pop(pid)
    if cause is None and status:
        cause = "oom" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _OUT_OF_MEMORY else "error"
    text = output.decode("utf-8", "replace") if cause is None else ""
    report = {"status": cause or "ok", "output": text, "seconds": time.monotonic() - started}
    _write_all(1, _dumps(report).encode() + b"\n")
    return cause is None


def _collect(pid: int, reading: int, deadline: float, limit: int) -> tuple[bytes, str | None]:
    """Reads a test's output until its process ends; returns it, and the limit that was broken."""
    os.set_blocking(reading, False)
    output = bytearray()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    process = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    if process is not None:
        poll.register(process, select.POLLIN)
    try:
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return bytes(output), "timeout"
            ready = {fd for fd, _ in poll.poll(left_s * 1000 if process is not None else min(left_s * 1000, 5))}
            ended = process in ready if process is not None else _has_ended(pid)
            while True:
                try:
                    data = os.read(reading, 1 << 16)
                except BlockingIOError:
                    break
                output += data
                if len(output) > limit:
                    return bytes(output[:limit]), "output_limit"
                if not data:
                    with contextlib.suppress(KeyError):
                        poll.unregister(reading)
                    break
            if ended:
                return bytes(output), None
    finally:
        if process is not None:
            os.close(process)


def _has_ended(pid: int) -> bool:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        _statuses[pid] = status
    return bool(ended)


def _clear_away(task: dict[str, Any]) -> None:
    """Kills the processes that a test left behind, and removes its files and its shared memory.

    Raises:
        DirtyError: Something would not go.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            break
        try:
            with open("/proc/thread-self/children") as children:
                for pid in children.read().split():
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            raise DirtyError from None
        if time.monotonic() > deadline:
            raise DirtyError
        time.sleep(0.001)
    try:
        shared = ["/dev/shm"] if task["own_memory"] and os.path.isdir("/dev/shm") else []
        for folder in (os.getcwd(), os.environ["TMPDIR"], *shared):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.remove(path)
        if task["own_ipc"] and _libc is not None:
            for kind, remove in (("shm", _libc.shmctl), ("msg", _libc.msgctl), ("sem", _libc.semctl)):
                for identifier in _system_v(kind):
                    remove(identifier, *((0,) if kind == "sem" else ()), _IPC_RMID, None)
    except (OSError, KeyError, RecursionError):
        raise DirtyError from None


def _system_v(kind: str) -> list[int]:
    """Lists what there is of System V shared memory, queues or semaphores; nothing where the kernel has no such table."""
    try:
        with open(f"/proc/sysvipc/{kind}") as table:
            return [int(line.split()[1]) for line in table.readlines()[1:]]
    except FileNotFoundError:
        return []


def _run_child(task: dict[str, Any], length: int, writing: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        if _ruleset >= 0 and _libc is not None:
            _libc.syscall(_SYS_RESTRICT_SELF, _ruleset, 0)
        data = os.pread(0, length, os.lseek(0, 0, os.SEEK_CUR))
        assert len(data) == length
        os.dup2(_input_of(data), 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        result = 3
        os.dup2(nothing, 2)
        os.dup2(writing, result)  # The two ends of the pipe were opened first, so nothing that is needed lies here.
        os.dup2(nothing if task["function"] else result, 1)
        os.closerange(4 if task["function"] else 3, 512)
        _open_streams()
        _set_traceable(True)
        if (task["compatible"] or task["function"]) and hasattr(sys, "set_int_max_str_digits"):
            sys.set_int_max_str_digits(_LIVECODEBENCH_DIGITS if task["compatible"] else 0)  # JSON's integers have no limit.
        if task["function"]:
            code = _run_function(task, data, result)
        elif task["compatible"]:
            code = _run_livecodebench_program(task["code"], data.decode())
        else:
            del data
            code = _run_program(task["code"])
        _shut_down()
    except MemoryError:
        code = _OUT_OF_MEMORY
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def _input_of(data: bytes) -> int:
    """Returns a descriptor to read the bytes from; the one with all inputs is given up for it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("input")
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    _write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _open_streams() -> None:
    """Opens the standard streams as the interpreter does, ``sys.__stdout__`` and its like included."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        buffer: Any = open(fd, "wb" if fd else "rb", closefd=False)  # noqa: SIM115
        buffer.raw.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(buffer, "utf-8", "backslashreplace" if fd == 2 else "strict", "\n" if fd else None)
        stream.mode = "w" if fd else "r"
        sys.__dict__.update({name: stream, f"__{name}__": stream})
    sys.argv[:] = ["main.py"]


def _new_main(names: dict[str, Any]) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(names)
    main.__dict__.update(__name__="__main__", __builtins__=builtins, __file__="main.py")
    sys.modules["__main__"] = main
    return main


def _run_program(code: str) -> int:
    """Runs code as ``python main.py`` does."""
    try:
        exec(compile(code, "main.py", "exec", 0, True), _new_main({}).__dict__)
    except SystemExit as error:
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 0


def _run_function(task: dict[str, Any], data: bytes, result: int) -> int:
    """Calls a function and writes its value as JSON; in the compatible mode also whether JSON holds it without loss."""
    sys.setrecursionlimit(_RECURSION_LIMIT)
    names, code, name = dict(_names), task["code"], task["function"]
    dumps, loads, write = _dumps, _loads, _write_all
    if task["compatible"]:
        names = {}
        exec(_LIVECODEBENCH_NAMES, names)
    main = _new_main(names)
    exec(compile(code, "main.py", "exec", 0, True), main.__dict__)
    target = getattr(main.Solution() if hasattr(main, "Solution") else main, name)
    value = target(*[loads(line) for line in data.decode().split("\n") if line.strip()])
    text = dumps(value)
    if task["compatible"]:
        text = dumps([loads(text) == (list(value) if isinstance(value, tuple) else value), text])
    write(result, text.encode())
    return 0


def _run_livecodebench_program(code: str, text: str) -> int:
    """Runs a program in the way LiveCodeBench does: its statements become the body of a function, its input a stand-in."""
    tree = ast.parse(code)
    if isinstance(tree.body[-1], ast.If) and ast.unparse(tree.body[-1].test).strip() == "__name__ == '__main__'":
        tree.body[-1:] = tree.body[-1].body
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    body = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    function = ast.parse("def wrapped_function():\n    pass")
    assert isinstance(function.body[0], ast.FunctionDef)
    function.body[0].body = body
    source = "\n".join((_LIVECODEBENCH_NAMES, ast.unparse(ast.Module(imports, [])), ast.unparse(function)))
    module = types.ModuleType("tmp_sol")
    sys.setrecursionlimit(_RECURSION_LIMIT)
    exec(source, module.__dict__)
    written = io.StringIO()
    with (
        mock.patch("builtins.open", mock.mock_open(read_data=text)),
        mock.patch("sys.stdin", _StandInInput(text)),
        mock.patch("sys.stdout", written),
        contextlib.suppress(SystemExit),
    ):
        module.wrapped_function()
    _write_all(1, written.getvalue().encode("utf-8", "replace"))
    return 0


class _StandInInput:
    """Standard input as LiveCodeBench replaces it, whose ``buffer.readline`` stays at the first line."""

    def __init__(self, text: str) -> None:
        self._text = text
        data = text.encode()
        self.buffer = types.SimpleNamespace(read=lambda *_: data, readline=lambda *_: data.split(b"\n")[0] + b"\n")
        self._lines = iter(text.split("\n"))

    def read(self, *_: Any) -> str:
        return self._text

    def readline(self, *_: Any) -> str:
        return next(self._lines)

    def readlines(self, *_: Any) -> list[str]:
        return self._text.split("\n")

    def __iter__(self) -> Iterator[str]:
        return io.StringIO(self._text)


def _shut_down() -> None:
    """Does what the interpreter does at its end, as far as a program can notice, in that order."""
    getattr(threading, "_shutdown")()  # noqa: B009 - waits for threads that are no daemons
    atexit._run_exitfuncs()
    if sys.stdout is not None and not getattr(sys.stdout, "closed", False):
        sys.stdout.flush()
    gc.collect()  # Puts what is alive in order; else the next one may close a file before its buffer is written.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.modules.pop("__main__", None)
    gc.collect()
    with contextlib.suppress(Exception):
        sys.__stdout__.flush()  # type: ignore[union-attr]


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _set_traceable(traceable: bool) -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_DUMPABLE, int(traceable), 0, 0, 0)
