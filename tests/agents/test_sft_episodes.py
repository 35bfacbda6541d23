from dataclasses import replace
from typing import Any

import pytest

from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.sft import conversation_example
from cleaner_env.agents.sft_episodes import episode_examples
from cleaner_env.wrappers.records import EpisodeRecord

CONVERSATION = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Let a = 1 + 2."},
    {"role": "assistant", "content": "Compute a.\n```python\nprint(a)\n```"},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "\\boxed{3}"},
)


def said(tokenizer: Any, example: Any) -> str:
    learned = [i for i, learn in zip(example.token_ids, example.learn, strict=True) if learn]
    return str(tokenizer.decode(learned, skip_special_tokens=False))


def test_what_is_learned_is_what_the_assistant_says_by_the_chat_template(tokenizer: Any) -> None:
    example = conversation_example(CONVERSATION, Renderer(tokenizer))
    whole = tokenizer.apply_chat_template(list(CONVERSATION), tokenize=False)
    assert whole.startswith(tokenizer.decode(example.token_ids, skip_special_tokens=False))
    end = tokenizer.eos_token
    assert said(tokenizer, example) == f"{CONVERSATION[2]['content']}{end}{CONVERSATION[4]['content']}{end}"
    last_only = conversation_example(CONVERSATION, Renderer(tokenizer), learn=[False, True])
    assert last_only.token_ids == example.token_ids
    assert said(tokenizer, last_only) == f"{CONVERSATION[4]['content']}{end}"


def test_episodes_are_chosen_by_their_outcome_and_length(tokenizer: Any) -> None:
    right = EpisodeRecord("p", "d", CONVERSATION[:2], (), CONVERSATION, info={"verdict": "correct"})
    wrong, unanswered = (replace(right, info={"verdict": verdict}) for verdict in ("incorrect", "no_answer"))
    silent = replace(right, conversation=CONVERSATION[:2])
    lost = replace(right, info={})
    records = [right, wrong, unanswered, silent, lost]
    renderer = Renderer(tokenizer)
    for keep, used, left in (("correct", 1, 3), ("answered", 2, 2), ("all", 4, 0)):
        examples, counts = episode_examples(records, renderer, keep)
        assert len(examples) == used
        assert counts == {name: n for name, n in (("used", used), ("not kept", left), ("empty", 1)) if n}
    length = len(conversation_example(CONVERSATION, renderer).token_ids)
    assert episode_examples([right], renderer, context_tokens=length)[1] == {"used": 1}
    assert episode_examples([right], renderer, context_tokens=length - 1) == ([], {"too long": 1})


@pytest.mark.parametrize("keep", ["correct", "answered", "all"])
def test_no_episodes_give_no_examples(tokenizer: Any, keep: str) -> None:
    assert episode_examples([], Renderer(tokenizer), keep) == ([], {})
