"""Measures the sandboxes beside what people use instead, in one run, and soaks them in bad cells.

    python benchmarks/sandbox.py                      a table, and sandbox.json
    python benchmarks/sandbox.py --soak 20000         bad cells on each backend, then what is left behind

Every contestant opens sessions and runs the same cells, which carry a counter from one to the next. Contestants that
are not installed, or cannot run here, are listed with the reason. Docker contestants need an engine; where none answers
and this runs as root on Linux with dockerd, one is started for the run.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cleaner_env.errors import CleanerError
from cleaner_env.sandbox import DockerSandbox, Limits, LocalSandbox, Sandbox
from cleaner_env.sandbox.image import build_image
from cleaner_env.sandbox.private_engine import private_engine

FOLDER = Path(tempfile.mkdtemp(prefix="cleaner-env-benchmark-"))  # In the command line of every local worker of this run.
NAP = f"77.{os.getpid()}"  # What no other process sleeps for.
IMAGE = "cleaner-env-sandbox:benchmark"
PRELOAD = ("numpy", "scipy", "sympy")
FIRST, NEXT = "x = 0", "x = x + 1\nprint(x)"


@dataclass
class Row:
    """What was measured of one contestant; times in milliseconds."""

    name: str
    keeps_state: str
    rolls_back: str
    open_p50: float
    cell_p50: float
    cell_p99: float
    cells_per_s: float


class Contestant(ABC):
    """Something that runs cells.

    `open` returns a function that runs a cell and returns what it printed, and one that ends the session.
    """

    name = ""
    keeps_state = "yes"
    rolls_back = "no"

    @abstractmethod
    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]: ...

    def close(self) -> None:  # noqa: B027 - most contestants share nothing and have nothing to end
        """Ends what the sessions share."""


class Ours(Contestant):
    rolls_back = "exactly"

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self.sandbox = sandbox
        self.name = name
        sandbox.describe()  # Starts it.

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        session = self.sandbox.open()

        def run(code: str) -> str:
            return session.run(code).stdout

        return run, session.close

    def close(self) -> None:
        self.sandbox.close()


class BareFork(Contestant):
    """The least that could drop a failed cell: a fork for each, with no limits, no clock, no files, no isolation."""

    name = "bare fork per cell"
    rolls_back = "memory only"
    SERVER = (
        "import contextlib, io, json, os, sys\n"
        "state = {}\n"
        "while True:\n"
        "    line = sys.stdin.buffer.raw.readline()\n"
        "    if not line: os._exit(0)\n"
        "    pid = os.fork()\n"
        "    if pid:\n"
        "        if os.waitpid(pid, 0)[1] == 0: os._exit(0)\n"
        "        continue\n"
        "    out = io.StringIO()\n"
        "    with contextlib.redirect_stdout(out): exec(json.loads(line), state)\n"
        "    os.write(1, json.dumps(out.getvalue()).encode() + b'\\n')\n"
    )

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        server = subprocess.Popen([sys.executable, "-c", self.SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdin is not None
        assert server.stdout is not None
        sending, receiving = server.stdin, server.stdout

        def run(code: str) -> str:
            sending.write(json.dumps(code).encode() + b"\n")
            sending.flush()
            return str(json.loads(receiving.readline()))

        def close() -> None:
            server.kill()
            sending.close()
            receiving.close()
            server.wait()

        return run, close


class Replay(Contestant):
    name = "fresh subprocess, history replayed"
    rolls_back = "by replay"

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        history: list[str] = []

        def run(code: str) -> str:
            quiet = ["import contextlib, io", "with contextlib.redirect_stdout(io.StringIO()):", "    pass"]
            quiet += [f"    {line}" for cell in history for line in cell.splitlines()]
            program = "\n".join([*quiet, code])
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            history.append(code)
            return done.stdout

        return run, lambda: None


class DockerExec(Contestant):
    name = "docker exec per cell"
    keeps_state = "no"

    def __init__(self) -> None:
        import docker

        self.client = docker.from_env()

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        container = self.client.containers.run(
            IMAGE, ["python3", "-c", "import signal; signal.pause()"], detach=True, network_mode="none"
        )

        def run(code: str) -> str:
            return str(container.exec_run(["python3", "-c", f"x = 0\n{code}"]).output.decode())

        return run, lambda: container.remove(force=True)

    def close(self) -> None:
        self.client.close()


class LLMSandbox(Contestant):
    name = "llm-sandbox (docker)"
    keeps_state = "no"

    def __init__(self) -> None:
        from llm_sandbox import SandboxSession

        self.make = SandboxSession

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        session = self.make(lang="python", image=IMAGE, keep_template=True, skip_environment_setup=True, workdir="/tmp")
        session.open()

        def run(code: str) -> str:
            return str(session.run(f"x = 0\n{code}").stdout)

        return run, session.close


class Smolagents(Contestant):
    name = "smolagents local executor"

    def __init__(self) -> None:
        from smolagents.local_python_executor import LocalPythonExecutor

        self.make = LocalPythonExecutor

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        executor = self.make([])
        executor.send_tools({})

        def run(code: str) -> str:
            return str(executor(code).logs)

        return run, lambda: None


class Jupyter(Contestant):
    name = "Jupyter kernel"

    def __init__(self) -> None:
        import ipykernel  # noqa: F401 - the kernel to start
        from jupyter_client.manager import start_new_kernel

        self.start = start_new_kernel

    def open(self) -> tuple[Callable[[str], str], Callable[[], None]]:
        manager, client = self.start(kernel_name="python3")

        def run(code: str) -> str:
            text: list[str] = []
            client.execute_interactive(code, output_hook=lambda m: text.append(m["content"].get("text", "")), timeout=60)
            return "".join(text)

        def close() -> None:
            client.stop_channels()
            manager.shutdown_kernel(now=True)

        return run, close


def measure(contestant: Contestant, sessions: int, cells: int) -> Row:
    opens, times = [], []
    for _ in range(sessions):
        started = time.perf_counter()
        run, close = contestant.open()
        opens.append(time.perf_counter() - started)
        try:
            run(FIRST)
            for number in range(1, cells + 1):
                started = time.perf_counter()
                output = run(NEXT)
                times.append(time.perf_counter() - started)
                expected = number if contestant.keeps_state == "yes" else 1
                if str(expected) not in output:
                    raise RuntimeError(f"{contestant.name} printed {output[:200]!r}, expected {expected}")
        finally:
            close()
    ordered = sorted(times)
    return Row(
        contestant.name,
        contestant.keeps_state,
        contestant.rolls_back,
        1e3 * statistics.median(opens),
        1e3 * statistics.median(ordered),
        1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        len(times) / sum(times),
    )


def contestants(with_docker: bool) -> Iterator[tuple[str, Callable[[], Contestant]]]:
    yield "ours, local", lambda: Ours(LocalSandbox(), "ours, local")
    yield "preloaded", lambda: Ours(LocalSandbox(preload=PRELOAD), "ours, local, numpy+scipy+sympy preloaded")
    if with_docker:
        yield "ours, docker", lambda: Ours(DockerSandbox(IMAGE), "ours, docker")
        yield "preloaded", lambda: Ours(DockerSandbox(IMAGE, PRELOAD), "ours, docker, numpy+scipy+sympy preloaded")
        yield "docker exec", DockerExec
        yield "llm-sandbox", LLMSandbox
    yield "bare fork", BareFork
    yield "replay", Replay
    yield "smolagents", Smolagents
    yield "jupyter", Jupyter


def compare(arguments: argparse.Namespace, with_docker: bool, console: Console) -> dict[str, Any]:
    rows, missing = [], {}
    for name, make in contestants(with_docker):
        try:
            with contextlib.closing(make()) as contestant:
                measure(contestant, 1, 2)  # What happens only once is not what is measured.
                rows.append(measure(contestant, arguments.sessions, arguments.cells))
        except Exception as error:  # A contestant that cannot run here must not end the run of the others.
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    table = Table(
        "", "keeps state", "rolls back", "open p50 ms", "cell p50 ms", "cell p99 ms", "cells/s", title="One session"
    )
    for row in sorted(rows, key=lambda row: -row.cells_per_s):
        figures = [f"{value:,.2f}" for value in (row.open_p50, row.cell_p50, row.cell_p99, row.cells_per_s)]
        table.add_row(row.name, row.keeps_state, row.rolls_back, *figures)
    console.print(table)
    for name, reason in missing.items():
        console.print(f"not measured: {name}: {reason}", markup=False)
    speed = {row.name: row.cells_per_s for row in rows}
    cell = {row.name: row.cell_p50 for row in rows}
    ratios = {}
    if "docker exec per cell" in speed:
        ratios["cells/s, ours in docker : docker exec"] = speed["ours, docker"] / speed["docker exec per cell"]
    ratios["cell p50, ours local : bare fork"] = cell["ours, local"] / cell["bare fork per cell"]
    memory = idle_memory_mb()
    for name, value in ratios.items():
        console.print(f"{name}  {value:.2f}")
    console.print(f"memory per idle local session  {memory:.1f} MB private, modules preloaded before")
    return {"rows": [asdict(row) for row in rows], "missing": missing, "ratios": ratios, "idle_session_mb": memory}


def idle_memory_mb(sessions: int = 10) -> float:
    """MB that belong to one more session alone: proportional set sizes of all processes, before and after."""
    with LocalSandbox(preload=PRELOAD) as sandbox:
        first = sandbox.open()
        first.run("1")
        before = _proportional_mb()
        opened = [sandbox.open() for _ in range(sessions)]
        for session in opened:
            session.run("x = 1")
        time.sleep(0.5)
        return (_proportional_mb() - before) / sessions


BAD_CELLS: dict[str, tuple[str, ...]] = {
    "x = x + 1": ("ok",),
    "1 / 0": ("error",),
    "import os; os._exit(3)": ("exit",),
    "while True: pass": ("timeout",),
    "import time; time.sleep(60)": ("timeout",),
    "bytearray(700 << 20)": ("oom",),
    "while True: print('a' * 1000)": ("output_limit",),
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass": ("killed", "timeout"),
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(60)": ("ok", "error"),
    "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()": ("ok",),
    f"import subprocess; subprocess.Popen(['sleep', '{NAP}'])": ("ok",),
    "n = open('f', 'w').write('x' * 1000)": ("ok",),
    "import ctypes; ctypes.string_at(0)": ("killed",),
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL)": ("killed", "ok"),
}
WEIGHTS = [60, 20, 4, 1, 1, 2, 2, 1, 2, 2, 2, 4, 2, 1]


def soak(sandbox: Sandbox, cells: int, workers: int, seed: int) -> dict[str, Any]:
    """Runs bad cells in several sessions at once, and counts what is left and what went wrong."""
    wrong: list[str] = []
    gc.collect()
    before = left_behind()
    sandbox.open().close()
    started = time.perf_counter()

    def work(number: int) -> None:
        choose = random.Random(f"{seed} {number}")
        todo = cells // workers
        while todo > 0:
            with sandbox.open() as session:
                session.run(f"x = 0; own = {number}")
                for _ in range(min(todo, 50)):
                    code = choose.choices(list(BAD_CELLS), WEIGHTS)[0]
                    execution = session.run(code, limits=Limits(wall_s=0.5, processes=32))
                    late = execution.duration_s > 1.5
                    if late or execution.status not in (*BAD_CELLS[code], *(("timeout",) if "fork" in code else ())):
                        wrong.append(
                            f"{code!r}: {execution.status} after {execution.duration_s:.2f} s {execution.stderr[:80]}"
                        )
                    todo -= 1
                if session.run("own").value != str(number):
                    wrong.append(f"session {number} lost its state")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    sandbox.close()
    gc.collect()
    time.sleep(2)
    after = left_behind()
    return {
        "cells": cells,
        "cells_per_s": cells / seconds,
        "wrong": len(wrong),
        "wrong_examples": wrong[:10],
        "leaked": {name: round(after[name] - before[name], 1) for name in before},
    }


def left_behind() -> dict[str, float]:
    """What sandboxes could leave: processes, descriptors, containers, MB of memory and files."""
    containers = 0
    with contextlib.suppress(Exception):
        from cleaner_env.sandbox.container import OWNER_LABEL
        from cleaner_env.sandbox.engine import connect

        api = connect()
        containers = len(api.containers(all=True, filters={"label": OWNER_LABEL}))
        api.close()
    files = [path.lstat().st_size for path in FOLDER.rglob("*")]
    status = Path("/proc/self/statm").read_text().split()
    return {
        "processes": sum(len(list(_processes(text))) for text in (str(FOLDER), f"sleep {NAP}")),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "containers": containers,
        "file_mb": round(sum(files) / 1e6, 1),
        "own_memory_mb": round(int(status[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
    }


def _processes(text: str) -> Iterator[Path]:
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and text.encode() in (path / "cmdline").read_bytes().replace(b"\0", b" "):
                yield path


def _proportional_mb() -> float:
    total = 0.0
    for path in _processes(str(FOLDER)):
        with contextlib.suppress(OSError):
            lines = (path / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


@contextlib.contextmanager
def engine(console: Console) -> Iterator[bool]:
    """Sees to an engine with the image; says whether there is one."""
    from cleaner_env.sandbox.engine import connect, engine_has_image

    with contextlib.ExitStack() as stack:
        try:
            try:
                connect().close()
            except CleanerError:
                os.environ["DOCKER_HOST"] = stack.enter_context(private_engine()).address
            if not engine_has_image(IMAGE):
                build_image(IMAGE, method="auto", report=lambda line: console.print(line, style="dim"))
        except CleanerError as error:
            console.print(f"without docker: {error}", markup=False)
            yield False
            return
        yield True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10, help="sessions per contestant")
    parser.add_argument("--cells", type=int, default=30, help="cells per session")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="instead, run N bad cells on each backend")
    parser.add_argument("--workers", type=int, default=4, help="sessions at once in the soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-docker", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("sandbox.json"))
    arguments = parser.parse_args()
    console = Console(width=150)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # So that the engine is ended as well.
    tempfile.tempdir = str(FOLDER)
    atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
    with engine(console) if not arguments.no_docker else contextlib.nullcontext(False) as with_docker:
        result: dict[str, Any] = {"python": sys.version.split()[0], "cpus": os.cpu_count(), "load": os.getloadavg()}
        if arguments.soak:
            sandboxes: list[Sandbox] = [LocalSandbox(), *([DockerSandbox(IMAGE)] if with_docker else [])]
            for sandbox in sandboxes:
                result[sandbox.name] = soak(sandbox, arguments.soak, arguments.workers, arguments.seed)
                console.print(sandbox.name, result[sandbox.name])
        else:
            result |= compare(arguments, with_docker, console)
    temporary = arguments.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(arguments.json)
    console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
