"""A tokenizer of at most a thousand ids for the project's own small models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["train_tiny_tokenizer"]

VOCABULARY_SIZE: Final = 1024
PAD: Final = "<|pad|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML."""

_NAME_WITH_OPERATOR: Final = r"\b\p{L} [-+*=]+ "
_WORDS: Final = rf"\p{{L}}+\b(?: (?!{_NAME_WITH_OPERATOR})\p{{L}}+\b)*"
_PIECES: Final = rf"\p{{N}}|\n|{_NAME_WITH_OPERATOR}|{_WORDS}|[^\p{{L}}\p{{N}}\n]+"
"""What merges stay within: one digit, a newline, a one-letter name with the operator after it, words with the spaces
between them, anything else.

A phrase that is always the same becomes one token, which keeps the fixed parts of a prompt short. A name and its operator
become one, so that what is to be copied follows a token that occurs once: to look up what followed the last occurrence of
a token is the first thing that attention learns.
"""


def train_tiny_tokenizer(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer with ChatML turns.

    Any text can be encoded and comes back exactly. Digits are single tokens. The same texts give the same tokenizer.

    Args:
        texts: What to learn merges from.
        vocabulary_size: Ids, the 256 bytes and three special tokens included.

    Example:
        >>> tokenizer = train_tiny_tokenizer(["print(a)\\n"] * 9)
        >>> tokenizer.decode(tokenizer("print(a) ü 123").input_ids)
        'print(a) ü 123'
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
