"""Puts the verbs together, and turns this package's errors into one line and an exit code.

Exit codes: 0 done; 1 the infrastructure failed; 2 a wrong option or input; 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from cleaner_env import __version__
from cleaner_env.cli import data, evaluate, models, replay, sandbox, sft, train, view
from cleaner_env.errors import CleanerError, InfrastructureError

__all__ = ["app", "main"]

_INTERRUPTED: Final = 130


class _ErrorsAsLines(TyperGroup):
    """Reports what the user can mend in one red line; a traceback is for faults of this package, or for CLEANER_DEBUG=1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CleanerError as error:
            if os.environ.get("CLEANER_DEBUG") == "1":
                raise
            typer.secho(f"error: {_one_line(error)}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1 if isinstance(error, InfrastructureError) else 2) from None
        except KeyboardInterrupt:
            typer.secho("interrupted", fg=typer.colors.YELLOW, err=True)
            raise typer.Exit(_INTERRUPTED) from None


app = typer.Typer(
    cls=_ErrorsAsLines,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Examples:\n\n"
        "  cleaner train                      the default run: tiny model, arithmetic\n\n"
        "  cleaner train saar.share=0         the same without purification\n\n"
        "  cleaner eval --policy oracle       try an environment without a model\n\n"
        "  cleaner models fetch smollm2       get a small real model\n\n"
        "  cleaner eval --model DIRECTORY     evaluate a model\n\n"
        "Every command has --help. CLEANER_DEBUG=1 shows tracebacks."
    ),
)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("eval", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("sft", epilog=sft.EXAMPLES)(sft.sft)
app.command("replay", epilog=replay.EXAMPLES)(replay.replay)
app.command("view", epilog=view.EXAMPLES)(view.view)
app.add_typer(models.app, name="models")
app.add_typer(sandbox.app, name="sandbox")
app.command("doctor")(sandbox.doctor)
app.add_typer(data.app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cleaner-env {__version__}")
        raise typer.Exit


@app.callback()
def _cleaner(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train and evaluate language models that use a Python tool, on episodes whose failed calls are purified."""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def main() -> None:
    """Runs the ``cleaner`` command."""
    app(prog_name="cleaner")
