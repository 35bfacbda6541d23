"""Settings for all tests."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import settings

import cleaner_env  # noqa: F401 - registers the environments

# One thread per process: the tests start many small processes, which would otherwise fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Examples start real processes, and machines differ: no deadline per example, and the same examples in every run.
settings.register_profile("cleaner", deadline=None, derandomize=True)
settings.load_profile("cleaner")


@pytest.fixture(scope="session")
def install_debian():
    """Installs a Debian package where its program is missing, in automatic runs or where the user asks for it."""

    def install(package, program):
        allowed = {"CI", "CLEANER_INSTALL_DEBIAN"} & os.environ.keys()
        if not allowed or os.geteuid() != 0 or shutil.which(program) or not shutil.which("apt-get"):
            return
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("update -qq", f"install -y -qq --no-install-recommends {package}"):
            subprocess.run(["apt-get", *command.split()], env=environment, stdout=subprocess.DEVNULL, check=False)

    return install


@pytest.fixture(scope="session")
def python_call():
    """Writes a turn that calls the tool in the fenced format."""
    return lambda code, reasoning="": f"{reasoning}```python\n{code}\n```"


@pytest.fixture(scope="session")
def parity_env(request):
    """The id of an environment that a model of random weights solves half of the time, for a process with its folder on
    the path; it is registered in this one."""
    file = request.config.rootpath / "tests" / "agents" / "parity_task.py"
    spec = importlib.util.spec_from_file_location("parity_task", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity_task"] = module
    spec.loader.exec_module(module)
    return f"parity_task:{module.ENV_ID}"


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory):
    """A directory with a small Llama of random weights and a tokenizer with a chat template; for reading only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from cleaner_env.agents.tiny_tokenizer import train_tiny_tokenizer

    tokenizer = train_tiny_tokenizer(
        ["Let a = 1 + 2.\n```python\nprint(a)\n```\n", "\\boxed{3}", "user assistant tool"] * 3
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.3,
    )
    directory = tmp_path_factory.mktemp("models") / "tiny-random"
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
