"""From sampled ids to text, and to the place of each token in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer"]

_REPLACEMENT: Final = "\ufffd"


class Detokenizer:
    """Decodes ids exactly as they stand inside a conversation: special tokens are spelled out, nothing is cleaned up.

    SentencePiece decoders drop a space that begins a text. No turn begins one, so that space is kept here.

    Args:
        tokenizer: What the ids are of.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}
        self._before: list[int] = list(tokenizer("x", add_special_tokens=False)["input_ids"])
        self._characters_before = len(self._decode(self._before))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids."""
        return self._decode([*self._before, *ids])[self._characters_before :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def piece(self, token_id: int) -> str:
        """Returns the text of one id."""
        if token_id not in self._pieces:
            self._pieces[token_id] = self.decode([token_id])
        return self._pieces[token_id]

    def locate(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Decodes ids and finds the character at which each begins.

        A token that begins inside a character, its bytes being split over several tokens, has the offset of the token
        before it. So the ids can be divided wherever the offsets rise: both parts then decode to the text on their side.

        Returns:
            The text and one non-decreasing offset per id.
        """
        text = self.decode(ids)
        offsets: list[int] = []
        border = position = 0
        for end in range(len(ids)):
            written = self.decode(ids[border:end])
            if not written.endswith(_REPLACEMENT):  # or else a character, which more bytes may complete, has only begun
                position += len(written)
                border = end
            offsets.append(position)
        return text, tuple(min(offset, len(text)) for offset in offsets)
