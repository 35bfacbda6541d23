"""Measures what purification costs: the wrapper beside the bare environment, and the comparison of code beside difflib.

    python benchmarks/saar.py               two tables, and saar.json

Steps run in the local sandbox. The wrapper's own time is that of its ``step`` less that of the environment's inside it, so
the noise of the sandbox cancels. Programs are pieces of Python's standard library, and the same with a name changed and 2 %
of their lines dropped or moved, which is how corrections differ from what failed.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from cleaner_env.env import Transition
from cleaner_env.wrappers.purification import Turn, purify
from cleaner_env.wrappers.saar import SAARWrapper
from cleaner_env.wrappers.similarity import code_similarity

LENGTHS = (100, 500, 2_000, 10_000, 20_000)
RIGHT, WRONG = "```python\nx = 6 * 7\nprint(x)\n```", "```python\nx = 6 * 7\nprnt(x)\n```"


class Stopwatch(gym.Wrapper):
    """Measures the steps of what it wraps."""

    seconds = 0.0

    def step(self, action: str) -> Transition:
        """Takes a step."""
        began = time.perf_counter()
        try:
            return self.env.step(action)
        finally:
            self.seconds = time.perf_counter() - began


def measure_overhead(episodes: int, turns: int) -> dict[str, dict[str, float]]:
    """Returns medians in milliseconds, of steps of the bare environment and of the wrapper's own time.

    Args:
        episodes: Episodes of each kind.
        turns: Tool calls in each of them; every second one has to be repaired in the episodes with errors.
    """
    watch = Stopwatch(gym.make("CleanerArithmetic-v0", sandbox="local", max_turns=turns + 2))
    inside: dict[str, list[float]] = {"steps that run": [], "errors and corrections": []}
    own: dict[str, list[float]] = {kind: [] for kind in inside}
    with SAARWrapper(watch) as env:
        for episode in range(2 * episodes + 2):
            kind = list(inside)[episode % 2]
            env.reset(seed=episode)
            for turn in range(turns):
                repairs = kind != "steps that run" and turn % 2
                for action in (WRONG, RIGHT) if repairs else (RIGHT,):
                    began = time.perf_counter()
                    env.step(action)
                    seconds = time.perf_counter() - began
                    if episode >= 2 and (repairs or kind == "steps that run"):  # the first two warm everything up
                        inside[kind].append(watch.seconds)
                        own[kind].append(seconds - watch.seconds)
    return {
        kind: {
            "step_ms": 1000 * statistics.median(inside[kind]),
            "wrapper_ms": 1000 * statistics.median(own[kind]),
            "overhead_percent": 100 * statistics.median(own[kind]) / statistics.median(inside[kind]),
        }
        for kind in inside
    }


def program(length: int) -> str:
    """A piece of real code, ``length`` characters long."""
    source = inspect.getsource(argparse)
    return source[source.index("class HelpFormatter") :][:length]


def corrected(code: str, rng: np.random.Generator) -> str:
    """The same code as a correction might have it."""
    lines = re.sub(r"\bself\b", "this", code).splitlines(keepends=True)
    for _ in range(max(1, len(lines) // 50)):
        moved = lines.pop(int(rng.integers(len(lines)))) if len(lines) > 1 else ""
        if rng.random() < 0.5:
            lines.insert(int(rng.integers(len(lines) + 1)), moved)
    return "".join(lines)


def milliseconds(work: Callable[[], object], least_seconds: float) -> float:
    """The median time of a call, over at least three of them."""
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < least_seconds:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def measure_similarity(rng: np.random.Generator, least_seconds: float) -> list[dict[str, float]]:
    """Returns times of one decision by number of characters."""
    rows = []
    for length in LENGTHS:
        first = program(length)
        second = corrected(first, rng)
        turns = [Turn(f"So:\n```python\n{code}\n```", "") for code in (first, second)]

        def difflib(first: str = first, second: str = second) -> float:
            return SequenceMatcher(None, first, second, autojunk=False).ratio()

        def decide(turns: list[Turn] = turns) -> object:
            return purify((), *turns, tool_format="python")

        assert code_similarity(first, second) == difflib()
        ours, theirs = milliseconds(decide, least_seconds), milliseconds(difflib, least_seconds)
        rows.append({"characters": length, "decision_ms": ours, "difflib_ms": theirs, "ratio": theirs / ours})
    return rows


def show(result: dict[str, Any]) -> None:
    """Prints the tables."""
    console = Console()
    table = Table("steps", "environment, ms", "wrapper, ms", "overhead", title="overhead, medians", title_justify="left")
    for kind, row in result["overhead"].items():
        table.add_row(kind, f"{row['step_ms']:.2f}", f"{row['wrapper_ms']:.3f}", f"{row['overhead_percent']:.1f} %")
    console.print(table)
    table = Table("characters", "purify, ms", "difflib, ms", "ratio", title="shallow or deep", title_justify="left")
    for row in result["similarity"]:
        numbers = f"{row['decision_ms']:,.2f}", f"{row['difflib_ms']:,.2f}", f"{row['ratio']:.1f}"
        table.add_row(f"{row['characters']:,}", *numbers)
    console.print(table)


def main() -> None:
    """Runs all, prints tables and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50, help="episodes with errors, and as many without")
    parser.add_argument("--turns", type=int, default=8, help="tool calls in an episode")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time that a decision is repeated for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("saar.json"), help="where the JSON goes")
    options = parser.parse_args()
    result = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "overhead": measure_overhead(options.episodes, options.turns),
        "similarity": measure_similarity(np.random.default_rng(options.seed), options.seconds),
    }
    show(result)
    temporary = options.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(options.json)
    print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
