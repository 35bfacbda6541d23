"""``cleaner train``: trains a model on purified episodes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cleaner_env.errors import ConfigError
from cleaner_env.extras import require_package

if TYPE_CHECKING:
    import torch

    from cleaner_env.agents.grpo import GRPOConfig
    from cleaner_env.agents.models import LoadedModel
    from cleaner_env.cli.progress import TrainingProgress

__all__ = ["EXAMPLES", "train"]

EXAMPLES = (
    "Examples:\n\n"
    "  cleaner train --dry-run\n\n"
    "  cleaner train --config run.toml saar.share=0 seed=1\n\n"
    "  cleaner train --resume runs/RUN steps=50"
)


def train(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE]...", help="Options, such as saar.share=0.5 or env.max_turns=4."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file with options.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="The folder of an interrupted run, to go on from its latest checkpoint with its own options."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every option with its value, and stop.")] = False,
) -> None:
    """Train a model with GRPO on episodes whose failed tool calls are purified.

    Without options: a tiny model on arithmetic, half of each group purified. Options given here override those of the file.
    Ctrl-C ends the run after the step under way, with a checkpoint; --resume goes on from there, or after anything worse.
    """
    from cleaner_env.agents.grpo_config import GRPOConfig
    from cleaner_env.cli.progress import TrainingProgress
    from cleaner_env.config import dump_toml, load_config

    if resume is not None and config is not None:
        raise ConfigError(f"a resumed run has its own options; leave out --config {config}, or give single options")
    if resume is not None and not (resume / "config.toml").is_file():
        fault = "is no run folder, it has no config.toml" if resume.exists() else "does not exist"
        raise ConfigError(f"{resume} {fault}; give the folder that the run printed, such as runs/20260131-120000")
    resolved = load_config(GRPOConfig, config if resume is None else resume / "config.toml", options or [])
    if dry_run:
        typer.echo(dump_toml(resolved), nl=False)
        return
    from cleaner_env.agents.grpo import GRPOTrainer, check_environments
    from cleaner_env.agents.models import load_model, resolve_device
    from cleaner_env.agents.run_folder import RunFolder, load_trainer_state
    from cleaner_env.agents.trackers import check_trackers

    # All of this before the cold start, which takes a minute or two.
    device = resolve_device(resolved.device)
    check_trackers(resolved.trackers)
    if resolved.lora.rank:
        require_package("peft", "lora.rank")
    check_environments(resolved)
    with TrainingProgress() as progress, ExitStack() as stack:
        resumed = stack.enter_context(RunFolder.reopen(resume)) if resume is not None else None
        checkpoint = resumed.latest_checkpoint() if resumed else None
        # Adapters and a reference belong to the model that the run began with.
        if checkpoint and not resolved.lora.rank:
            model, tokenizer = load_model(checkpoint, resolved.dtype, device)
        else:
            model, tokenizer = _initial_policy(resolved, progress, device)
        needs_reference = checkpoint and resolved.learner.loss.reference_kl > 0
        reference = _initial_policy(resolved, progress, device)[0] if needs_reference else None
        trainer = stack.enter_context(GRPOTrainer(resolved, model, tokenizer, reference))
        if checkpoint:
            trainer.restore(load_trainer_state(checkpoint))
        if resumed and options:
            resumed.write_config(dump_toml(resolved))
        folder = trainer.run(progress, resumed)
        finished = trainer.steps_done == resolved.steps
    typer.echo(folder)
    if not finished:
        raise KeyboardInterrupt


def _initial_policy(config: GRPOConfig, progress: TrainingProgress, device: torch.device) -> LoadedModel:
    from cleaner_env.agents.models import load_model

    directory = _cold_start(config, progress) if config.model == "tiny" else Path(config.model)
    return load_model(directory, config.dtype, device)


def _cold_start(config: GRPOConfig, progress: TrainingProgress) -> Path:
    """Makes the tiny model, unless an earlier run with this seed has made it."""
    from cleaner_env.agents.cold_start import RECIPE, make_cold_start
    from cleaner_env.agents.sft import SFTProgress

    directory = Path("models") / f"tiny-v{RECIPE}-seed{config.seed}"
    if directory.exists():
        progress.message(f"begins with {directory}, made by an earlier run; delete it to make it anew")
        return directory
    progress.message(f"makes {directory}: supervised cold start of a tiny model, one to two minutes")

    def report(state: SFTProgress) -> None:
        if state.step == 1:
            progress.start(state.steps, activity="cold start")
        if state.step == state.steps or state.step % max(1, state.steps // 20) == 0:
            progress.update({"step": state.step, "sft/loss": state.loss})

    return make_cold_start(directory, config.seed, report, sandbox=config.env.sandbox)
