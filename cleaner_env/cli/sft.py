"""``cleaner sft``: supervised fine-tuning on recorded episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cleaner_env.errors import ConfigError

__all__ = ["EXAMPLES", "sft"]

EXAMPLES = (
    "Examples:\n\n"
    "  cleaner eval --policy noisy --saar --episodes 2000 --out traces.jsonl\n\n"
    "  cleaner sft traces.jsonl --model models/smollm2 --out models/started"
)


def sft(
    episodes: Annotated[
        Path, typer.Argument(help="A run's folder, or a file that RecordEpisodes, cleaner eval or cleaner replay wrote.")
    ],
    model: Annotated[Path, typer.Option(help="The model directory to begin with.")],
    out: Annotated[Path, typer.Option(help="The model directory to make.")],
    keep: Annotated[str, typer.Option(help="Which episodes to learn: correct, answered or all.")] = "correct",
    epochs: Annotated[int, typer.Option(help="Passes over the episodes.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW, after the warm-up.")] = 1e-5,
    batch_tokens: Annotated[int, typer.Option(help="Most tokens of a batch, padding included.")] = 8192,
    seed: Annotated[int, typer.Option(help="Orders the episodes.")] = 0,
) -> None:
    """Fine-tune a model on what the assistant says in recorded episodes, as a start for reinforcement learning.

    Only the assistant's turns are learned, not what the system, the user and the tool say. Of purified episodes it is the
    purified history that is learned.
    """
    import numpy as np

    from cleaner_env.agents.models import check_new_directory, load_model, save_model
    from cleaner_env.agents.rendering import Renderer
    from cleaner_env.agents.sft import SFTConfig, SFTProgress
    from cleaner_env.agents.sft import sft as fine_tune
    from cleaner_env.agents.sft_episodes import KEEP, episode_examples
    from cleaner_env.cli.progress import TrainingProgress
    from cleaner_env.wrappers.records import episodes_file, read_episodes

    if keep not in KEEP:
        raise ConfigError(f"--keep must be one of {', '.join(KEEP)}, got {keep!r}")
    if epochs < 1:
        raise ConfigError(f"--epochs must be at least 1, got {epochs}")
    if seed < 0:
        raise ConfigError(f"--seed must not be negative, got {seed}")
    config = SFTConfig(learning_rate=learning_rate, batch_tokens=batch_tokens)
    check_new_directory(out)
    file = episodes_file(episodes)
    network, tokenizer = load_model(model, dtype="float32")
    context = getattr(network.config, "max_position_embeddings", None)
    longest = min(batch_tokens, context) if context else batch_tokens
    examples, counts = episode_examples(read_episodes(file), Renderer(tokenizer), keep, longest)
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
    if not examples:
        raise ConfigError(f"{file} has no episode to learn from with --keep {keep} and at most {longest:,} tokens: {told}")
    with TrainingProgress() as progress:
        progress.message(f"episodes: {told}; {sum(sum(example.learn) for example in examples):,} tokens to learn")

        def report(state: SFTProgress) -> None:
            if state.step == 1:
                progress.start(state.steps, activity="fine-tuning")
            if state.step == state.steps or state.step % max(1, state.steps // 20) == 0:
                progress.update({"step": state.step, "sft/loss": state.loss})

        fine_tune(network, [examples] * epochs, config, np.random.default_rng(seed), report)
    typer.echo(save_model(out, network, tokenizer))
