"""Low-rank adapters (LoRA, arXiv 2106.09685) through ``peft``: few weights are trained, and what is saved is a whole model.

The adapters are put into the model in place, so that it stays an ordinary model to everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cleaner_env.agents.grpo_config import LoRAConfig
from cleaner_env.errors import ConfigError
from cleaner_env.extras import optional_packages

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["adapter_weights", "add_lora", "load_adapter_weights", "merged_weights"]

_BASE = ".base_layer."
_ADAPTER = ".lora_"


def add_lora(model: PreTrainedModel, config: LoRAConfig, seed: int = 0) -> None:
    """Adds adapters to every linear layer of a model but its head, and freezes all else. At first they change nothing.

    Args:
        model: Changed in place.
        config: Rank and scale.
        seed: Of the adapters' random half; the model's own random state is left alone.

    Raises:
        ConfigError: The model has adapters already.
        MissingExtraError: ``peft`` is not installed.
    """
    import torch

    with optional_packages("lora.rank"):
        from peft import LoraConfig, inject_adapter_in_model
    if adapter_weights(model):
        raise ConfigError("the model has adapters already")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules="all-linear"),
            model,
        )


def merged_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Returns the weights of the plain model that computes the same, by the names that it has them under.

    Where there are no adapters, those are the model's own.
    """
    import torch

    merged = {name.replace(_BASE, "."): weight for name, weight in model.state_dict().items() if _ADAPTER not in name}
    with torch.no_grad():
        for name, module in model.named_modules():
            layer: Any = module
            for adapter in getattr(layer, "lora_A", {}):
                merged[f"{name}.weight"] = merged[f"{name}.weight"] + layer.get_delta_weight(adapter)
    return merged


def adapter_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Returns the weights of the adapters; none where there are no adapters."""
    return {name: weight for name, weight in model.state_dict().items() if _ADAPTER in name}


def load_adapter_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Sets the weights of the adapters.

    Raises:
        ConfigError: They are not those of `adapter_weights` for such a model.
    """
    own = adapter_weights(model)
    if {name: weight.shape for name, weight in own.items()} != {name: weight.shape for name, weight in weights.items()}:
        raise ConfigError(f"the checkpoint's {len(weights)} adapter weights do not fit the model's {len(own)}")
    model.load_state_dict(dict(weights), strict=False)
