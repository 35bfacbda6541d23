"""``cleaner sandbox``: builds the containers' image, and says what protection a sandbox gives on this machine."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

__all__ = ["app", "build", "describe", "doctor", "reap"]

app = typer.Typer(help="Build the containers' image, and say what protection there is.", no_args_is_help=True)


@app.command()
def build(
    packages: Annotated[
        list[str] | None,
        typer.Argument(help="Packages to install, as pip takes them.", show_default="numpy scipy sympy, as installed here"),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The image's name.", show_default="cleaner-env-sandbox:latest")] = None,
    method: Annotated[
        Literal["auto", "registry", "root"],
        typer.Option(help="registry: from python:3.x-slim. root: from this Python, with no registry. auto: what works."),
    ] = "auto",
) -> None:
    """Build the image that docker sandboxes run.

    Example: cleaner sandbox build numpy scipy sympy networkx
    """
    from cleaner_env.sandbox.docker import DEFAULT_IMAGE
    from cleaner_env.sandbox.image import PACKAGES, build_image

    image = build_image(tag or DEFAULT_IMAGE, packages or PACKAGES, method, lambda line: typer.echo(line, err=True))
    typer.echo(f"{tag or DEFAULT_IMAGE} {image}")


@app.command()
def describe(
    backend: Annotated[Literal["auto", "docker", "local"], typer.Argument(help="The backend.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a sandbox is and which protections it really has here.

    Example: cleaner sandbox describe local
    """
    from cleaner_env.sandbox import make_sandbox

    with make_sandbox(backend, **_impatient(backend)) as sandbox:
        facts = dict(sandbox.describe())
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        typer.echo(f"{name:18} {', '.join(map(str, value)) or '-' if isinstance(value, tuple) else value}")


@app.command()
def reap() -> None:
    """Remove containers of processes of this machine that have ended, as every docker sandbox does when it starts."""
    from cleaner_env.sandbox.engine import connect, remove_orphans

    api = connect()
    try:
        removed = remove_orphans(api)
    finally:
        api.close()
    typer.echo(f"removed {len(removed)}")


def doctor() -> None:
    """Say what of this package works on this machine: versions, extras, and sandboxes tried for real.

    Exit code 1 where not even the local sandbox runs a cell.
    """
    import platform
    import sys

    from cleaner_env import __version__
    from cleaner_env.extras import EXTRAS, missing_packages

    typer.echo(f"cleaner-env        {__version__}, Python {platform.python_version()}, {sys.platform} {platform.machine()}")
    missing = [extra for extra in EXTRAS if missing_packages(extra)]
    typer.echo(f"extras             {', '.join(extra for extra in EXTRAS if extra not in missing) or 'none'}")
    for extra in missing:
        typer.echo(f"                   without {extra}; for it: pip install 'cleaner-env[{extra}]'")
    works = [_try(backend) for backend in ("local", "docker")]
    if not works[0]:
        raise typer.Exit(1)


def _impatient(backend: str) -> dict[str, float]:
    """Options for one who asks what is there now, and waits for no engine."""
    return {"engine_wait_s": 0.0} if backend == "docker" else {}


def _try(backend: str) -> bool:
    """Runs a cell in a sandbox and prints what it has; says whether it ran."""
    from cleaner_env.errors import CleanerError
    from cleaner_env.sandbox import make_sandbox

    try:
        with make_sandbox(backend, **_impatient(backend)) as sandbox:
            facts = sandbox.describe()
            with sandbox.open() as session:
                execution = session.run("6 * 7")
    except CleanerError as error:
        typer.echo(f"sandbox {backend:10} no: {error}")
        return False
    if execution.value != "42":
        typer.echo(f"sandbox {backend:10} no: a cell ended with {execution.status}: {execution.stderr}")
        return False
    network, files, calls = (facts[name] for name in ("network", "filesystem", "system_calls"))
    typer.echo(f"sandbox {backend:10} works; network {network}; files {files}; system calls {calls}")
    if not facts["security_boundary"]:
        typer.echo("                   no security boundary against a determined attacker")
    return True
