"""Settings for all tests."""

import os

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
def python_call():
    """Writes a turn that calls the tool in the fenced format."""
    return lambda code, reasoning="": f"{reasoning}```python\n{code}\n```"
