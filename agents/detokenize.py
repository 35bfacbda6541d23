"""From sampled ids to text, and to the place of each token in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer"]

_REPLACEMENT: Final = "\ufffd"


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

        A token that begins inside a character, its bytes being split over several tokens, has the offset of the token
        before it. So the ids can be divided wherever the offsets rise: both parts then decode to the text on their side.

        Returns:
            The text and one non-decreasing offset per id.
        """
        text = self.decode(ids)
        offsets: list[int] = []
        # What follows the latest border is decoded behind the piece before that border, since how a token is written may
        # depend on whether it is the first (SentencePiece drops a leading space).
        context, border, position, known = 0, 0, 0, 0
        for end in range(len(ids)):
            written = self.decode(ids[context:end])
            if not written.endswith(_REPLACEMENT):  # or else a character, which more bytes may complete, has only begun
                position += len(written) - known
                offsets.append(position)
                context, border = border, end
                known = len(self.decode(ids[context:border]))
            else:
                offsets.append(offsets[-1] if offsets else 0)
        return text, tuple(min(offset, len(text)) for offset in offsets)
