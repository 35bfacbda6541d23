"""``cleaner view``: writes recorded episodes as one HTML page."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from cleaner_env.errors import ConfigError

__all__ = ["EXAMPLES", "view"]

EXAMPLES = (
    "Examples:\n\n"
    "  cleaner view runs/first                                       writes runs/first/episodes.html\n\n"
    "  cleaner view runs/first --last --limit 500 --out latest.html  the end of a long run\n\n"
    "  cleaner eval --policy noisy --saar --out noisy.jsonl && cleaner view noisy.jsonl"
)


def view(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a file that RecordEpisodes or cleaner eval --out wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write, over what is there.", show_default="beside the episodes")
    ] = None,
    limit: Annotated[int, typer.Option(help="Episodes to show at most.")] = 5000,
    last: Annotated[bool, typer.Option("--last", help="Show the last ones, not the first.")] = False,
) -> None:
    """Write episodes as one HTML page, what was said beside what purification made of it.

    The page needs no network and no server: open it in a browser, or send it to somebody.
    """
    from cleaner_env.viewer import build_page
    from cleaner_env.wrappers.records import episodes_file, read_episodes, write_whole

    if limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {limit}")
    file = episodes_file(run)
    out = out or file.with_suffix(".html")
    if out.resolve() == file.resolve():
        raise ConfigError(f"{out} holds the episodes; give another file with --out")
    episodes = read_episodes(file)
    first = list(islice(episodes, 1))
    episodes = chain(first, episodes)
    page = build_page(deque(episodes, limit) if last else islice(episodes, limit), str(run))
    more = next(episodes, None) is not None
    write_whole(out, page.encode("ascii"))
    if not first:
        typer.echo(f"{file} has no episodes yet", err=True)
    if more:
        typer.echo(f"shows the first {limit:,} episodes; --last shows the last ones, --limit more", err=True)
    typer.echo(out)
