"""Unpacks LiveCodeBench's private tests: base64 around zlib around a pickled JSON text.

Nothing is unpickled. A pickle is a program for a small machine, which can call any function of the process that loads it;
here the program is only read, and refused unless it does nothing but put one text on the stack.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib
from typing import Final

from cleaner_env.errors import DataError

__all__ = ["unpack_private_tests"]

MAX_BYTES: Final = 256 * 2**20
_FRAMING: Final = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})
_TEXT: Final = frozenset({"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})


def unpack_private_tests(packed: object) -> object:
    """Returns the JSON text of private tests; what is not packed (plain JSON, or decoded already) is returned as it is.

    Raises:
        DataError: The text is neither JSON nor packed in the known way, unpacks to more than 256 MiB, or its pickle does
            more than hold a text.
    """
    if not isinstance(packed, str) or packed.lstrip()[:1] == "[":
        return packed
    try:
        compressed = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("private_test_cases is neither a JSON list nor base64") from None
    return _pickled_text(_decompressed(compressed))


def _decompressed(compressed: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(compressed, MAX_BYTES + 1)
    except zlib.error as error:
        raise DataError(f"private_test_cases is not zlib data: {error}") from None
    if len(content) > MAX_BYTES:
        raise DataError(f"private_test_cases unpacks to more than {MAX_BYTES} bytes")
    if not decompressor.eof:
        raise DataError("private_test_cases is cut off")
    return content


def _pickled_text(content: bytes) -> str:
    texts = []
    try:
        for operation, argument, _ in pickletools.genops(content):
            if operation.name in _TEXT:
                texts.append(argument)
            elif operation.name not in _FRAMING:
                raise DataError(f"private_test_cases holds a pickle that does more than hold a text: {operation.name}")
    except (ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"private_test_cases is not a pickle: {error}") from None
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise DataError("private_test_cases must hold one text")
    return texts[0]
