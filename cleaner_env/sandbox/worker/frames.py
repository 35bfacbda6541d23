"""Messages as length-prefixed JSON objects over a stream, with descriptors attached where the stream is a Unix socket."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Dict, Protocol  # noqa: UP035 - evaluated by Python 3.8

_HEADER = struct.Struct("!I")
MAX_FRAME = 256 << 20

Message = Dict[str, Any]  # noqa: UP006


class FrameError(Exception):
    """The other side sent something that is not a message."""


def encode(message: Message) -> bytes:
    """Returns the bytes of a message, header included."""
    body = json.dumps(message).encode("ascii")
    return _HEADER.pack(len(body)) + body


def write(fd: int, message: Message) -> None:
    """Writes a message to a blocking descriptor."""
    view = memoryview(encode(message))
    while view:
        view = view[os.write(fd, view) :]


def read(fd: int, limit: int = MAX_FRAME) -> Message:
    """Reads a message from a blocking descriptor.

    Raises:
        EOFError: The other side is gone.
        FrameError: What came is not a message, or is longer than ``limit`` bytes.
    """
    (length,) = _HEADER.unpack(_read_exactly(fd, _HEADER.size))
    return decode(_read_exactly(fd, _checked(length, limit)))


def send(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Sends a message with descriptors over a Unix socket."""
    view = memoryview(encode(message))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = connection.sendmsg([view], rights)
    connection.sendall(view[sent:])


def receive(connection: socket.socket, limit: int = MAX_FRAME, max_fds: int = 0) -> tuple[Message, list[int]]:
    """Receives a message and up to ``max_fds`` descriptors from a Unix socket; raises as `read` does."""
    space = socket.CMSG_SPACE(max_fds * array.array("i").itemsize) if max_fds else 0
    data, ancillary, _, _ = connection.recvmsg(_HEADER.size, space)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        raise EOFError
    data += _read_exactly(connection.fileno(), _HEADER.size - len(data))
    (length,) = _HEADER.unpack(data)
    return decode(_read_exactly(connection.fileno(), _checked(length, limit))), list(fds)


class Receiver(Protocol):
    """What `receive_timed` needs of a socket."""

    def settimeout(self, timeout_s: float | None, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...


def receive_timed(connection: Receiver, timeout_s: float, limit: int = MAX_FRAME) -> Message:
    """Receives a message within ``timeout_s`` seconds in all; raises ``socket.timeout`` after, else as `read` does."""
    deadline = time.monotonic() + timeout_s

    def read_exactly(size: int) -> bytes:
        chunks = []
        while size:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(min(size, 1 << 20))
            if not chunk:
                raise EOFError
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    (length,) = _HEADER.unpack(read_exactly(_HEADER.size))
    return decode(read_exactly(_checked(length, limit)))


def decode(body: bytes) -> Message:
    """Parses the body of a message; raises `FrameError` for anything but a JSON object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError("not JSON") from error
    if not isinstance(message, dict):
        raise FrameError("not an object")
    return message


def _checked(length: int, limit: int) -> int:
    if length > limit:
        raise FrameError(f"a message of {length} bytes, more than the {limit} allowed")
    return length


def _read_exactly(fd: int, size: int) -> bytes:
    chunks = []
    while size:
        chunk = os.read(fd, min(size, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
