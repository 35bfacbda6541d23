"""Reads rows in verl's schema, in which training pools such as DAPO-Math-17k and Open-AgentRL-30K are published.

A row holds ``prompt`` (messages), ``reward_model`` (with the reference as ``ground_truth``), and often ``data_source``,
``ability`` and ``extra_info`` (with ``index``). The reference of a programming problem holds ``inputs`` and ``outputs``,
and ``fn_name`` where a function is wanted, as a struct or as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["flatten_verl"]

_DAPO_WRAPPER: Final = re.compile(
    r"\s*Solve the following math problem step by step\.[^\n]*Answer: \$?Answer[^\n]*\n+(?P<problem>.*?)"
    r"\n+Remember to put your answer on its own line after \"Answer:\"\.?\s*",
    re.DOTALL,
)


def flatten_verl(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a row in verl's schema as columns that the tasks know; ``None`` where it is in another schema.

    The problem is the last user message, without the instruction that DAPO-Math-17k wraps around it.

    Example:
        >>> row = {
        ...     "prompt": [{"role": "user", "content": "What is 1 + 1?"}],
        ...     "reward_model": {"style": "rule", "ground_truth": "2"},
        ...     "extra_info": {"index": "7"},
        ... }
        >>> flatten_verl(row)
        {'id': '7', 'problem': 'What is 1 + 1?', 'answer': '2'}
    """
    messages, reward = values.get("prompt"), values.get("reward_model")
    if not isinstance(messages, list) or not isinstance(reward, Mapping) or "ground_truth" not in reward:
        return None
    users = [
        message.get("content") for message in messages if isinstance(message, Mapping) and message.get("role") == "user"
    ]
    problem = users[-1] if users else None
    wrapped = _DAPO_WRAPPER.fullmatch(problem) if isinstance(problem, str) else None
    truth = reward["ground_truth"]
    row = {
        "id": _identifier(values),
        "problem": wrapped["problem"] if wrapped else problem,
        "answer": truth,
        "ability": values.get("ability"),
        "data_source": values.get("data_source"),
        **_tests(truth),
    }
    return {name: value for name, value in row.items() if value is not None}


def _identifier(values: Mapping[str, Any]) -> str | None:
    extra = values.get("extra_info")
    index = extra.get("index") if isinstance(extra, Mapping) else None
    return str(index) if isinstance(index, (int, str)) and str(index).strip() else None


def _tests(truth: object) -> dict[str, Any]:
    """Returns the columns of a programming problem, where the reference is one."""
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        try:
            truth = json.loads(truth)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(truth, Mapping) or not {"inputs", "outputs"} <= truth.keys():
        return {}
    inputs, outputs, function = truth["inputs"], truth["outputs"], truth.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        return {"tests": None}
    if function and all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [json.dumps(output[0]) for output in outputs]  # Files that wrap values in a list do so in every test.
    read_input, read_output = (_arguments, _value) if function else (_plain, _plain)
    pairs = zip(inputs, outputs, strict=True)
    tests = [{"input": read_input(given), "output": read_output(output)} for given, output in pairs]
    return {"tests": tests, "fn_name": function}


def _arguments(given: object) -> object:
    """Returns arguments as JSON, one to a line."""
    return "\n".join(json.dumps(argument) for argument in given) if isinstance(given, list) else given


def _plain(given: object) -> object:
    return "\n".join(map(str, given)) if isinstance(given, list) else given


def _value(output: object) -> object:
    """Returns what a function has to return as JSON; text is that already."""
    return output if isinstance(output, str) else json.dumps(output)
