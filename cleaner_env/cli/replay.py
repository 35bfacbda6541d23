"""``cleaner replay``: purifies recorded episodes anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cleaner_env.errors import ConfigError

if TYPE_CHECKING:
    from cleaner_env.wrappers.purifier import PurificationRule
    from cleaner_env.wrappers.replay import ReplayReport

__all__ = ["EXAMPLES", "replay"]

EXAMPLES = (
    "Examples:\n\n"
    "  cleaner replay runs/first --threshold 0.3\n\n"
    "  cleaner replay runs/first --similarity ast --recorded raw --out ast.jsonl && cleaner view ast.jsonl"
)


def replay(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a file that RecordEpisodes or cleaner eval --out wrote.")],
    threshold: Annotated[float, typer.Option(help="Similarity from which on the reasoning is kept.")] = 0.5,
    similarity: Annotated[
        str, typer.Option(help="How code is compared: characters, tokens, lines, ast or reference.")
    ] = "characters",
    max_retries: Annotated[int, typer.Option(help="Corrections tried for one error.")] = 3,
    strategy: Annotated[str, typer.Option(help="saar, shallow, deep, mask or none.")] = "saar",
    on_errors: Annotated[
        str | None,
        typer.Option(help="Errors that are repaired, such as error,timeout,malformed.", show_default="all of the model's"),
    ] = None,
    recorded: Annotated[
        str, typer.Option(help="Which episodes: all, those purified while they were recorded, or the raw ones.")
    ] = "all",
    out: Annotated[Path | None, typer.Option(help="A new file for the episodes as they would stand.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Purify recorded episodes anew, by another rule, and report what would have changed.

    Neither a model nor a sandbox is needed, since a record has everything that was said. The answer holds as far as the
    agent would have said the same: after another decision it would have seen another history.

    A record does not say by which rule it was purified: give the options that differed from the defaults then, or they
    count among the changes.
    """
    from cleaner_env.wrappers.purifier import MODEL_ERRORS, PurificationRule
    from cleaner_env.wrappers.records import episodes_file, json_line, read_episodes, write_whole
    from cleaner_env.wrappers.replay import ReplayReport, replay_episode

    if recorded not in ("all", "purified", "raw"):
        raise ConfigError(f"--recorded must be all, purified or raw, got {recorded!r}")
    errors = MODEL_ERRORS if on_errors is None else on_errors.split(",")
    rule = PurificationRule(strategy, threshold, max_retries, similarity, errors)
    file = episodes_file(run)
    if out is not None and os.path.lexists(out):
        raise ConfigError(f"{out} exists; give a new file with --out")
    report = ReplayReport()
    lines = []
    for record in read_episodes(file):
        if recorded == "all" or record.purified == (recorded == "purified"):
            replayed = replay_episode(record, rule)
            report.add(record, replayed)
            if out is not None:
                lines.append(json_line(replayed.as_json(tokens=True)))
    if out is not None:
        write_whole(out, b"".join(lines))
    if as_json:
        typer.echo(json.dumps(report.as_dict(), allow_nan=False))
    else:
        _print_tables(str(run), rule, report)


def _print_tables(run: str, rule: PurificationRule, report: ReplayReport) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    how = f"{rule.strategy}, threshold {rule.similarity_threshold:g}, {rule.similarity}, {rule.max_retries} retries"
    console.print(f"{_printable(run)}, replayed with {how}", highlight=False)
    table = Table("repairs", "recorded", "replayed")
    for outcome in ("shallow", "deep", "failed", "abandoned", "unfinished"):
        table.add_row(outcome, f"{report.before[outcome]:,}", f"{report.after[outcome]:,}")
    console.print(table)
    console.print(f"{report.episodes_changed:,} of {report.episodes:,} episodes have another history", highlight=False)
    if report.changes:
        table = Table("failed calls", "recorded as", "would be", title="what changed", title_justify="left")
        for (before, after), count in report.changes.most_common():
            table.add_row(f"{count:,}", before, after)
        console.print(table)
        table = Table("problem", "turn", "recorded as", "would be", "similarity", title="for example", title_justify="left")
        for change in report.examples:
            score = "-" if change.similarity is None else f"{change.similarity:.2f}"
            table.add_row(_printable(str(change.problem_id)), str(change.turn), change.before, change.after, score)
        console.print(table)


def _printable(text: str) -> str:
    """Text of somebody else's for a terminal, without what would steer it."""
    from rich.markup import escape

    return escape("".join(character if character.isprintable() else "?" for character in text))
