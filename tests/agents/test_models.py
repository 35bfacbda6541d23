from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from cleaner_env.agents.models import load_model
from cleaner_env.errors import ModelError


@pytest.fixture
def directory(tmp_path: Path, model_directory: Path) -> Path:
    return Path(shutil.copytree(model_directory, tmp_path / "model"))


def test_a_saved_model_comes_back(directory: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(directory)
    assert not model.training
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    model_again, tokenizer_again = load_model(tmp_path / "again")
    assert model_again.state_dict().keys() == model.state_dict().keys()
    for name, weights in model.state_dict().items():
        assert torch.equal(model_again.state_dict()[name], weights), name
    assert tokenizer_again.chat_template == tokenizer.chat_template
    assert tokenizer_again("print(a)").input_ids == tokenizer("print(a)").input_ids


def test_dtype(directory: Path) -> None:
    assert load_model(str(directory))[0].dtype == torch.float32
    assert load_model(directory, "bfloat16")[0].dtype == torch.bfloat16
    assert load_model(directory, torch.float16)[0].dtype == torch.float16
    with pytest.raises(ModelError, match="dtype must be auto or a torch dtype such as bfloat16, got 'float99'"):
        load_model(directory, "float99")


def refused(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(directory)
    message = str(caught.value)
    assert "\n" not in message
    assert str(directory) in message
    return message


def test_what_is_no_model_directory(tmp_path: Path) -> None:
    assert "there is no model directory" in refused(tmp_path / "absent")
    file = tmp_path / "model.safetensors"
    file.touch()
    assert "is a file" in refused(file)
    assert "it has no config.json" in refused(tmp_path)


def test_weights_that_are_absent_or_pickled(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    assert "it has no weights" in refused(directory)
    torch.save({}, directory / "pytorch_model.bin")
    assert "pickled" in refused(directory)


def test_weights_that_are_cut_off(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "the model in" in refused(directory)
    weights.write_bytes(b"")
    assert "the model in" in refused(directory)


def test_weights_that_lack_a_tensor(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    assert "1 are missing, such as model.norm.weight" in refused(directory)


def test_weights_of_another_shape(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 112}))
    message = refused(directory)
    assert "shape" in message or "size mismatch" in message


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": "no such architecture"}', "{}"])
def test_a_malformed_config(directory: Path, content: str) -> None:
    (directory / "config.json").write_text(content)
    refused(directory)


def test_a_tokenizer_without_chat_template(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    assert "has no chat template" in refused(directory)


def test_a_tokenizer_that_is_absent_or_malformed(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")
    assert "the tokenizer in" in refused(directory)
    (directory / "tokenizer.json").unlink()
    refused(directory)


def test_a_tokenizer_of_another_model(directory: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    shutil.copytree(directory, tmp_path / "mixed")
    LlamaForCausalLM(small).save_pretrained(tmp_path / "mixed")
    assert "do not belong together" in refused(tmp_path / "mixed")


def test_code_in_the_directory_is_not_run(directory: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (directory / "custom.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    config = json.loads((directory / "config.json").read_text())
    own_code = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "custom", "auto_map": own_code}))
    refused(directory)
    assert not ran.exists()
