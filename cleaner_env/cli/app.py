"""Puts the verbs together, and turns this package's errors into one line and an exit code.

Exit codes: 0 done; 1 the infrastructure failed; 2 a wrong option or input; 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from cleaner_env import __version__
from cleaner_env.cli import data, evaluate, models, replay, sandbox, sft, train, view
from cleaner_env.errors import CleanerError, InfrastructureError
from cleaner_env.extras import optional_packages

__all__ = ["app", "main"]

_INTERRUPTED: Final = 130
# Typer brings the parser along in some releases and imports it in others; this is its base of errors in either.
_ParserError: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class _ErrorsAsLines(TyperGroup):
    """Reports what the user can mend in one red line; a traceback is for faults of this package, or for CLEANER_DEBUG=1."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        try:
            with optional_packages("this command"):
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except (CleanerError, _ParserError) as error:
            if os.environ.get("CLEANER_DEBUG") == "1":
                raise
            # A command that was given nothing has shown its help, and has no more to say.
            if line := _one_line(_parser_fault(error) if isinstance(error, _ParserError) else str(error)):
                typer.secho(f"error: {line}", fg=typer.colors.RED, err=True)
            code = 1 if isinstance(error, InfrastructureError) else 2
        except (KeyboardInterrupt, typer.Abort):
            code = _INTERRUPTED
        if code == _INTERRUPTED:
            typer.secho("interrupted", fg=typer.colors.YELLOW, err=True)
        sys.exit(code)


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


def _parser_fault(error: Any) -> str:
    """Says what is wrong with the command line, which value it was, and where to read on; "" where help was shown."""
    fault: str = error.format_message().rstrip(".")
    if isinstance(error.__cause__, ValueError):
        from pydantic import ValidationError

        from cleaner_env.config import describe_fault

        if isinstance(error.__cause__, ValidationError):
            fault = fault.replace(error.message.rstrip("."), describe_fault(error.__cause__.errors()[0]))
    fault = fault[:1].lower() + fault[1:]
    context = getattr(error, "ctx", None)
    if not fault or context is None:
        return fault
    if hasattr(error, "option_name") and any("OPTION=VALUE" in (param.metavar or "") for param in context.command.params):
        fault += "; options of a run are written without dashes, such as steps=3"
    return f"{fault}; see {context.command_path} --help"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """Runs the ``cleaner`` command."""
    app(prog_name="cleaner")
