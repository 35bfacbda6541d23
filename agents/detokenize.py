"""From sampled ids to text, and to the place of each token in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer"]

_REPLACEMENT: Final = "\ufffd"
_WINDOW: Final = 32


class Detokenizer:
    """Decodes ids exactly: special tokens are spelled out and nothing is cleaned up."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def piece(self, token_id: int) -> str:
        """Returns the text of one id on its own (in a text, a leading space may precede it)."""
        if token_id not in self._pieces:
            self._pieces[token_id] = self.decode([token_id])
        return self._pieces[token_id]

    def locate(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Decodes ids and finds the character at which each begins.

        The tokens of a character that is split over several all begin where the character does.

        Returns:
            The text and one non-decreasing offset per id.
        """
        text = self.decode(ids)
        offsets: list[int] = []
        # The text is decoded in windows that overlap by one, since decoding every prefix would be quadratic, and since
        # the text of a token may depend on the one before.
        base = 0
        for start in range(0, len(ids), _WINDOW):
            context = max(0, start - _WINDOW)
            known = len(self.decode(ids[context:start]).rstrip(_REPLACEMENT))
            for end in range(start, min(start + _WINDOW, len(ids))):
                read = len(self.decode(ids[context:end]).rstrip(_REPLACEMENT)) - known
                offsets.append(max(base + read, offsets[-1] if offsets else 0))
            base += len(self.decode(ids[context : start + _WINDOW]).rstrip(_REPLACEMENT)) - known
        return text, tuple(min(offset, len(text)) for offset in offsets)
