"""``cleaner data``: lists, shows, checks and exports problems."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cleaner_env.errors import ConfigError, DataError

if TYPE_CHECKING:
    from cleaner_env.tasks import Dataset, Problem, Task

__all__ = ["app"]

app = typer.Typer(help="List, show, check and export problems.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="A data set's name, or the path of a problem file.")]
_Task = Annotated[
    str | None,
    typer.Option("--task", help="aime, gpqa, livecodebench or arithmetic; needed where the name leaves it open."),
]
_Split = Annotated[
    str | None, typer.Option(help="A split of the data set; of LiveCodeBench also a window of dates, or releases.")
]
_LONGEST_LINE: Final = 400


@app.callback()
def _data() -> None:
    """List, show, check and export problems."""


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False) -> None:
    """List the data sets that are known by name. Nothing is fetched."""
    rows = _known()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="data sets", title_justify="left")
    for column in ("name", "tasks", "for", "problems"):
        table.add_column(column, no_wrap=True)
    table.add_column("from", overflow="fold")
    for row in rows:
        size = "without end" if row["endless"] else "-" if row["problems"] is None else f"{row['problems']:,}"
        source = row["source"] + (", gated" if row["gated"] else "")
        table.add_row(row["name"], "\n".join(row["tasks"]), row["role"], size, source)
    Console().print(table)


def _known() -> list[dict[str, Any]]:
    from cleaner_env.tasks import get_task
    from cleaner_env.tasks.catalog import HUB_DATASETS

    rows: list[dict[str, Any]] = []
    for task in ("aime", "gpqa", "livecodebench"):
        rows.append(_row("builtin", task, "evaluation", "test", len(get_task(task).load("builtin").problems)))
    levels = [("aime", f"generated_level{level}") for level in range(1, 6)]
    for task, name in (
        ("aime", "generated"),
        *levels,
        ("gpqa", "generated"),
        ("livecodebench", "generated"),
        ("arithmetic", "builtin"),
    ):
        rows.append(_row(name, task, "both", "train, test", None, endless=True))
    for entry in HUB_DATASETS.values():
        rows.append(
            {
                "name": entry.name,
                "tasks": list(entry.tasks),
                "role": entry.role,
                "split": entry.split,
                "problems": entry.size,
                "endless": False,
                "source": f"{entry.repository}@{entry.revision[:12]}",
                "gated": entry.gated,
                "note": entry.note,
            }
        )
    return rows


def _row(name: str, task: str, role: str, split: str, problems: int | None, endless: bool = False) -> dict[str, Any]:
    source = {"source": "this package", "gated": False, "note": ""}
    return {"name": name, "tasks": [task], "role": role, "split": split, "problems": problems, "endless": endless, **source}


@app.command()
def show(
    dataset: _Name,
    task: _Task = None,
    split: _Split = None,
    index: Annotated[int, typer.Option(help="Which problem, from 0 on.")] = 0,
    problem_id: Annotated[str | None, typer.Option("--id", help="Which problem, by id.")] = None,
    answer: Annotated[bool, typer.Option("--answer", help="Show the reference too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show one problem as a model gets to see it.

    Example: cleaner data show builtin --task gpqa --index 3 --answer
    """
    chosen, loaded = _load(dataset, task, split)
    problem = _find(loaded, index, problem_id)
    messages = chosen.messages(problem)
    shown = {"id": problem.id, "dataset": loaded.label, "messages": [dict(message) for message in messages]}
    if answer:
        shown["answer"] = problem.answer
    if as_json:
        typer.echo(json.dumps(shown, ensure_ascii=False))
        return
    typer.echo(f"{problem.id} of {loaded.label}")
    for message in messages:
        typer.echo(f"\n[{message['role']}]\n{message['content']}")
    if answer:
        text = problem.answer
        typer.echo(f"\n[answer]\n{text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + ' ...'}")


@app.command()
def check(
    dataset: _Name,
    task: _Task = None,
    split: _Split = None,
    limit: Annotated[int, typer.Option(help="Problems to check at most.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load a data set, fetching it if need be, and check every problem of it.

    Checked are ids, sizes, and that the grader takes the reference for right. Rows of a training pool that are another
    task's, repeat a problem or contradict one are left out, and counted by reason.
    """
    from cleaner_env.tasks.catalog import HUB_DATASETS
    from cleaner_env.tasks.loading import counted

    _check_limit(limit)
    chosen, loaded = _load(dataset, task, split)
    entry = HUB_DATASETS.get(dataset)
    if entry is not None and entry.size is not None and split in (None, entry.split) and len(loaded.problems) != entry.size:
        raise DataError(f"dataset {dataset!r} has {len(loaded.problems)} problems, but {entry.size} are expected")
    ids: set[str] = set()
    errata = 0
    checked = min(limit, len(loaded.problems))
    for problem in islice(loaded.problems, checked):
        if problem.id in ids:
            raise DataError(f"{loaded.name}: id {problem.id!r} is there twice")
        ids.add(problem.id)
        errata += "erratum" in problem.metadata
        _check_reference(chosen, problem)
    report = {
        "dataset": loaded.name,
        "task": chosen.name,
        "problems": len(loaded.problems),
        "checked": checked,
        "errata": errata,
        "left_out": dict(loaded.left_out),
        "fingerprint": loaded.fingerprint,
    }
    if as_json:
        typer.echo(json.dumps(report))
    else:
        report["left_out"] = counted(loaded.left_out) or 0
        typer.echo("\n".join(f"{name:12} {value}" for name, value in report.items()))


def _check_reference(task: Task, problem: Problem) -> None:
    if task.name == "livecodebench":
        from cleaner_env.grading import CodeTests

        CodeTests.from_json(problem.answer)
        return
    grade = task.grade(problem, f"\\boxed{{{problem.answer}}}", None)  # type: ignore[arg-type]
    if not grade.correct:
        raise DataError(f"problem {problem.id!r}: its own reference {problem.answer[:80]!r} is graded {grade.verdict}")


@app.command()
def export(
    dataset: _Name,
    path: Annotated[Path, typer.Argument(help="The file to write, ending in .jsonl.")],
    task: _Task = None,
    split: _Split = None,
    limit: Annotated[int | None, typer.Option(help="Problems to write at most.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write problems, references included, as JSON Lines that this package reads back.

    Example: cleaner data export generated_level2 easy.jsonl --limit 5000
    """
    from cleaner_env.tasks.exporting import export as write

    _check_limit(limit)
    chosen, loaded = _load(dataset, task, split)
    if limit is None and len(loaded.problems) > 200_000:
        raise ConfigError(f"dataset {dataset!r} has {len(loaded.problems):,} problems; say how many with --limit")
    count = write(chosen, islice(loaded.problems, limit), path, overwrite=force)
    typer.echo(f"{count:,} problems of {loaded.label} in {path}")


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {limit}")


def _load(dataset: str, task: str | None, split: str | None) -> tuple[Task, Dataset]:
    from cleaner_env.tasks import TASKS, get_task
    from cleaner_env.tasks.catalog import HUB_DATASETS

    if task is None:
        entry = HUB_DATASETS.get(dataset.partition(":")[0])
        tasks = entry.tasks if entry else ("aime",) if dataset.startswith("generated_level") else ()
        if len(tasks) != 1:
            names = ", ".join(tasks or TASKS)
            raise ConfigError(f"{dataset!r} does not say which task's problems are meant; give --task, one of {names}")
        task = tasks[0]
    chosen = get_task(task)
    return chosen, chosen.load(dataset, split)


def _find(dataset: Dataset, index: int, problem_id: str | None) -> Problem:
    if problem_id is not None:
        found = next((problem for problem in islice(dataset.problems, 100_000) if problem.id == problem_id), None)
        if found is None:
            raise DataError(f"no problem has the id {problem_id!r} in {dataset.name}")
        return found
    if not 0 <= index < len(dataset.problems):
        raise ConfigError(f"--index must be 0 to {len(dataset.problems) - 1}, got {index}")
    return dataset.problems[index]
