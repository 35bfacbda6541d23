from __future__ import annotations

import os
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.sandbox import Execution, Limits
from cleaner_env.sandbox.replies import execution_from_reply
from cleaner_env.sandbox.worker import frames

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_sent_arrives(message) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, message)
        assert frames.receive(theirs) == (message, [])
        frames.write(theirs.fileno(), message)
        assert frames.receive_timed(ours, 5) == message


def test_descriptors_travel_along_with_a_large_message() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    message = {"text": "x" * 3_000_000}
    with ours, theirs:
        thread = threading.Thread(target=frames.send, args=(ours, message, [reading, writing]))
        thread.start()
        received, fds = frames.receive(theirs, max_fds=2)
        thread.join()
        assert received == message
        os.write(fds[1], b"through")
        assert os.read(reading, 10) == b"through"
        for fd in (reading, writing, *fds):
            os.close(fd)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"1", b"\xff\xfe", b"[" * 100_000])
def test_anything_but_an_object_is_refused(body) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("!I", len(body)) + body)
        with pytest.raises(frames.FrameError):
            frames.read(theirs.fileno())


def test_a_length_beyond_the_limit_is_refused_unread() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("!I", 0xFFFFFFFF))
        with pytest.raises(frames.FrameError, match="4294967295"):
            frames.receive_timed(theirs, 5)


def test_a_half_message_times_out_and_an_end_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\0\0")
        with pytest.raises(TimeoutError):
            frames.receive_timed(theirs, 0.05)
        ours.close()
        with pytest.raises(EOFError):
            frames.receive_timed(theirs, 5)


KEYS = ["status", "stdout", "stderr", "value", "exception", "truncated", "exit_code", "signal"]
STATUS = st.sampled_from(["ok", "error", "exit", "killed", "nonsense"])


@given(st.dictionaries(st.sampled_from(KEYS), JSON | STATUS | st.fixed_dictionaries({"name": JSON, "message": JSON})))
def test_no_reply_whatever_breaks_the_host(reply) -> None:
    execution = execution_from_reply(reply, Limits(output_bytes=5), 0.1)
    assert isinstance(execution, Execution)
    assert len(execution.stdout) <= 5
    for text in (execution.stdout, execution.stderr, execution.value or "", execution.signal or ""):
        text.encode()
    if reply.get("status") in (None, "nonsense"):
        assert execution.status == "infrastructure_error"
