"""``cleaner eval``: plays the problems of an environment and prints how it went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cleaner_env.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from cleaner_env.agents.evaluate import Evaluation, LanguageModel

__all__ = ["EXAMPLES", "evaluate"]

EXAMPLES = (
    "Examples:\n\n"
    "  cleaner eval --policy oracle --env CleanerAIME-v0 --dataset exam.jsonl\n\n"
    "  cleaner eval --model models/smollm2 --episodes 50 --json\n\n"
    "  cleaner eval --policy noisy --saar --out noisy.jsonl && cleaner view noisy.jsonl"
)


def evaluate(
    model: Annotated[Path | None, typer.Option(help="A local model directory in the Hugging Face layout.")] = None,
    policy: Annotated[str | None, typer.Option(help="Instead of a model: oracle, noisy or random.")] = None,
    env: Annotated[str, typer.Option(help="The environment.")] = "CleanerArithmetic-v0",
    dataset: Annotated[str | None, typer.Option(help="A data set's name, or the path of a problem file.")] = None,
    split: Annotated[str | None, typer.Option(help="A split of the data set.")] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many; more than there are problems repeats them.",
            show_default="every problem once; 200 where there are more than 2,000",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seeds everything random.")] = 0,
    saar: Annotated[bool, typer.Option("--saar/--no-saar", help="Purify failed calls while evaluating.")] = False,
    tool_format: Annotated[str | None, typer.Option(help="How calls are written: hermes or python.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Assistant turns per episode, the answer included.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Where code runs: auto, local or docker.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per turn.")] = 512,
    context: Annotated[int, typer.Option(help="Tokens of prompt and turn together, at most the model's own.")] = 4096,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(max=1, help="Nucleus of the sampling distribution that is kept.")] = 0.6,
    parallel: Annotated[int, typer.Option(min=1, help="Episodes played at a time.")] = 16,
    out: Annotated[
        Path | None, typer.Option(help="A file that the episodes are appended to, for cleaner view and cleaner replay.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Evaluate a model, or a scripted policy, on an environment.

    Purification is off unless --saar is given: what a model has learned shows without it. Episodes that the sandbox failed
    are counted and left out of every rate.
    """
    if (model is None) == (policy is None):
        raise ConfigError("give either --model DIRECTORY or --policy NAME (oracle, noisy, random)")
    if top_p <= 0:
        raise ConfigError(f"--top-p must be above 0, got {top_p:g}")
    if context <= max_tokens:
        raise ConfigError(f"--context must exceed --max-tokens, which is {max_tokens}, got {context}")
    if out is not None:
        from cleaner_env.wrappers.records import append_records, check_writable

        check_writable(out)
    from cleaner_env.agents import evaluate as evaluation
    from cleaner_env.agents.scripted import make_policy

    options = {"dataset": dataset, "split": split, "tool_format": tool_format, "max_turns": max_turns, "sandbox": sandbox}
    result = evaluation.evaluate(
        env,
        make_policy(policy) if policy else _load_player(model, max_tokens, temperature, top_p, context, parallel),
        episodes=episodes,
        seed=seed,
        saar=saar,
        env_options={name: value for name, value in options.items() if value is not None},
    )
    player = policy or str(model)
    if out is not None:
        append_records(out, (episode.as_record({"player": player, "phase": "eval"}) for episode in result.episodes))
    if as_json:
        typer.echo(json.dumps({"player": player, **result.as_dict()}, allow_nan=False))
    else:
        _print_table(player, result)
    if not result.summary.episodes:
        raise InfrastructureError("the sandbox failed in every episode")


def _load_player(
    model: Path | None, max_tokens: int, temperature: float, top_p: float, context: int, parallel: int
) -> LanguageModel:
    from cleaner_env.agents.engine import Sampling
    from cleaner_env.agents.evaluate import LanguageModel
    from cleaner_env.agents.models import load_model
    from cleaner_env.agents.rendering import Renderer

    assert model is not None
    sampling = Sampling(max_tokens, temperature, top_p)
    network, tokenizer = load_model(model)
    from cleaner_env.agents.transformers_engine import TransformersEngine  # after cheap checks: it imports torch

    engine = TransformersEngine(network, tokenizer)
    context = min(context, engine.context_length or context)
    if context <= max_tokens:
        raise ConfigError(f"{model} has a context of {context} tokens; give --max-tokens below that, got {max_tokens}")
    return LanguageModel(engine, Renderer(tokenizer), sampling, context, parallel)


def _print_table(player: str, result: Evaluation) -> None:
    from rich.console import Console
    from rich.table import Table

    summary = result.summary
    table = Table(show_header=False, title=f"{player} on {result.env_id}", title_justify="left")
    rows: list[tuple[str, Any]] = [
        ("data set", f"{result.dataset}, {result.problems:,} {'problem' if result.problems == 1 else 'problems'}"),
        ("split", result.split or "the data set's default"),
        ("seed", str(result.seed)),
        ("SAAR", "on" if result.saar else "off"),
        ("episodes", f"{summary.episodes:,}"),
        ("left out: infrastructure errors", f"{summary.infrastructure_errors:,}"),
        ("accuracy", _percent(summary.success)),
        ("no answer", f"{summary.no_answer:,}"),
        ("first-attempt tool errors", _percent(summary.first_attempt_error)),
        ("failed calls repaired at once", _percent(summary.recovered)),
        ("tool calls per episode", _number(summary.tool_calls)),
        ("turns per episode", _number(summary.turns)),
        ("sampled tokens per episode", _number(summary.tokens or None)),
        ("ends", _counts(summary.stop_conditions)),
        ("tool errors", _counts(summary.tool_failure_reasons)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _counts(counts: Any) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "-"
