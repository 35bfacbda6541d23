"""Graders: agreement and speed beside Math-Verify, and the judge's tests per second beside fresh interpreters.

    python benchmarks/grading.py --out grading.json

Agreement is measured on the cases of ``tests/grading/cases.jsonl``; Math-Verify is called as its documentation shows. The
judge and its rival, one fresh ``python`` process per test, run the same tests on the same cores in turn, in one run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cleaner_env.grading import (
    CodeTest,
    CodeTests,
    Judge,
    grade_choice,
    grade_expression,
    grade_integer,
    judge_code,
)
from cleaner_env.grading.integer import parse_integer
from cleaner_env.sandbox import make_sandbox

TESTS = Path(__file__).parents[1] / "tests" / "grading"
PROGRAM = "n = int(input())\nprint(sum(k * k for k in range(n + 1)))\n"


def agreement() -> dict[str, Any]:
    """Compares verdicts with the cases', ours and Math-Verify's."""
    cases = [json.loads(line) for line in (TESTS / "cases.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {}
    with make_sandbox("local") as sandbox:
        for kind in ("math", "choice", "code"):
            mine = [case for case in cases if case["kind"] == kind]
            ours = [case["id"] for case in mine if our_verdict(case, sandbox) != case["expected"]]
            found[kind] = {"cases": len(mine), "ours_wrong": ours, "math_verify_wrong": None}
            if kind == "math":
                answers = math_verify_verdicts([(case["response"], case["gold"]) for case in mine])
                wrong = [c["id"] for c, right in zip(mine, answers, strict=True) if right != (c["expected"] == "correct")]
                found[kind]["math_verify_wrong"] = wrong
    found["expression"] = expression_agreement()
    return found


def expression_agreement() -> dict[str, Any]:
    """Compares on the pairs of ``tests/grading/test_expression.py``, on which this project takes a stand."""
    source = load_module(TESTS / "test_expression.py")
    pairs = [(*pair, True) for pair in source.EQUAL] + [(*pair, False) for pair in source.UNEQUAL]
    responses = [(f"So \\boxed{{{answer}}}.", gold) for answer, gold, _ in pairs]
    theirs = math_verify_verdicts(responses)
    ours = [grade_expression(response, gold).correct for response, gold in responses]
    named = [(f"{answer} for {gold}", equal) for answer, gold, equal in pairs]
    return {
        "cases": len(pairs),
        "ours_wrong": [name for (name, equal), found in zip(named, ours, strict=True) if found != equal],
        "math_verify_wrong": [name for (name, equal), found in zip(named, theirs, strict=True) if found != equal],
    }


def our_verdict(case: dict[str, Any], sandbox: Any) -> str:
    """Grades a case."""
    if case["kind"] == "choice":
        return grade_choice(case["response"], case["gold"]).verdict
    if case["kind"] == "code":
        return judge_code(case["response"], case["gold"], sandbox).grade.verdict
    grade = grade_integer if parse_integer(case["gold"]) is not None else grade_expression
    return grade(case["response"], case["gold"]).verdict


def math_verify_verdicts(pairs: list[tuple[str, str]]) -> list[bool | None]:
    """Asks Math-Verify, in a process of its own, about responses and references; ``None`` where it does not come back."""
    code = (
        "import json, sys\nfrom math_verify import parse, verify\n"
        "for line in sys.stdin:\n    response, gold = json.loads(line)\n"
        "    print(verify(parse(f'${gold}$'), parse(response)), flush=True)"
    )
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=20 + len(pairs), check=False)
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
    answered: list[bool | None] = [line == "True" for line in output.split()]
    if len(answered) < len(pairs):
        answered += [None, *math_verify_verdicts(pairs[len(answered) + 1 :])]
    return answered


def microseconds(call: Callable[[str], object], texts: list[str], rounds: int = 5) -> float:
    """Returns the median of the time per call, in microseconds."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for text in texts:
            call(text)
        times.append((time.perf_counter() - begun) / len(texts))
    return 1e6 * statistics.median(times)


def aime_speed() -> dict[str, float]:
    """Grades AIME answers at the end of 2,000 characters of reasoning."""
    from math_verify import parse, verify

    reasoning = "We count the cases with $k = 1, 2, 3$ and find $\\frac{1}{2}$ of them. " * 30
    texts = [f"{reasoning}\n\nHence \\boxed{{{number:03}}}." for number in range(0, 1000, 10)]
    return {
        "ours": microseconds(lambda text: grade_integer(text, "120"), texts),
        "math_verify": microseconds(lambda text: verify(parse("$120$"), parse(text)), texts[:20], rounds=3),
    }


def judge_speed(workers: int, count: int, rounds: int) -> dict[str, Any]:
    """Alternates between the judge and fresh interpreters."""
    tests = CodeTests(tuple(CodeTest(f"{n}\n", f"{n * (n + 1) * (2 * n + 1) // 6}\n") for n in range(count)))

    def fresh(test: CodeTest) -> bool:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=test.input, capture_output=True, text=True, check=False
        )
        return done.returncode == 0 and done.stdout.strip() == test.output.strip()

    ours, theirs = [], []
    with make_sandbox("local") as sandbox, Judge(sandbox, workers) as judge, ThreadPoolExecutor(workers) as pool:
        isolation = dict(sandbox.describe())
        judge.run(PROGRAM, tests)
        for _ in range(rounds):
            begun = time.perf_counter()
            assert all(pool.map(fresh, tests.tests))
            theirs.append(count / (time.perf_counter() - begun))
            begun = time.perf_counter()
            assert all(result.status == "AC" for result in judge.run(PROGRAM, tests))
            ours.append(count / (time.perf_counter() - begun))
        begun = time.perf_counter()
        single = CodeTests(tests.tests[:12])
        assert judge_code(f"```python\n{PROGRAM}```", single, sandbox, workers=workers).grade.correct
        with_opening = 12 / (time.perf_counter() - begun)
    return {
        "workers": workers,
        "tests": count,
        "judge_tests_per_s": ours,
        "fresh_python_tests_per_s": theirs,
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "tests_per_s_of_12_with_opening_the_sessions": with_opening,
        "namespaces": isolation["namespaces"],
    }


def random_strings(count: int) -> dict[str, Any]:
    """Sends random strings through every grader, each as an answer and as a program."""
    source = load_module(TESTS / "test_random_strings.py")
    tests = CodeTests((CodeTest("5\n", "987654321\n"),), time_limit_s=1.0)
    verdicts: dict[str, dict[str, int]] = {}
    slowest = dict.fromkeys(("integer", "choice", "expression", "code"), 0.0)
    with make_sandbox("local") as sandbox, Judge(sandbox, 2) as judge:
        graders: dict[str, Callable[[str], str]] = {
            "integer": lambda text: grade_integer(f"\\boxed{{{text}}}", "987654321").verdict,
            "choice": lambda text: grade_choice(f"\\boxed{{{text}}}", "K", "EFGHIJK").verdict,
            "expression": lambda text: grade_expression(f"\\boxed{{{text}}}", "\\frac{987654321}{1234}", 2.0).verdict,
            "code": lambda text: judge_code(f"```python\n{text}\n```", tests, sandbox, judge=judge).grade.verdict,
        }
        for text in source.random_strings(count):
            for name, grade in graders.items():
                begun = time.perf_counter()
                verdict = grade(text)
                slowest[name] = max(slowest[name], time.perf_counter() - begun)
                counts = verdicts.setdefault(name, {})
                counts[verdict] = counts.get(verdict, 0) + 1
    return {"strings": count, "verdicts": verdicts, "slowest_s": slowest}


def load_module(path: Path) -> ModuleType:
    """Imports a file by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Runs all, prints tables and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("grading.json"), help="where the JSON goes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--random", type=int, default=10_000, help="random strings per grader")
    options = parser.parse_args()
    result = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "agreement": agreement(),
        "microseconds_per_aime_grade": aime_speed(),
        "judge": judge_speed(options.workers, options.tests, options.rounds),
        "random": random_strings(options.random) if options.random else None,
    }
    show(result)
    temporary = options.out.with_name(f".{options.out.name}.new")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(options.out)


def show(result: dict[str, Any]) -> None:
    """Prints the tables."""
    console = Console()
    table = Table("kind", "cases", "ours wrong", "Math-Verify wrong", title="agreement", title_justify="left")
    for kind, row in result["agreement"].items():
        theirs = "-" if row["math_verify_wrong"] is None else escape("; ".join(row["math_verify_wrong"])) or "none"
        table.add_row(kind, str(row["cases"]), escape("; ".join(row["ours_wrong"])) or "none", theirs)
    console.print(table)
    speed, judge = result["microseconds_per_aime_grade"], result["judge"]
    table = Table("what", "this package", "the other", "ratio", title="speed", title_justify="left")
    table.add_row(
        "µs per AIME grade, Math-Verify",
        f"{speed['ours']:.1f}",
        f"{speed['math_verify']:.1f}",
        f"{speed['math_verify'] / speed['ours']:.1f}",
    )
    ours, theirs = (statistics.median(judge[key]) for key in ("judge_tests_per_s", "fresh_python_tests_per_s"))
    table.add_row("tests/s, a fresh python per test", f"{ours:.1f}", f"{theirs:.1f}", f"{judge['ratio']:.1f}")
    console.print(table)
    if result["random"]:
        table = Table("grader", "verdicts", "slowest, s", title="random strings", title_justify="left")
        for name, counts in result["random"]["verdicts"].items():
            table.add_row(
                name, ", ".join(f"{k} {v:,}" for k, v in counts.items()), f"{result['random']['slowest_s'][name]:.2f}"
            )
        console.print(table)


if __name__ == "__main__":
    main()
