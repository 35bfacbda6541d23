import base64
import json
import pickle
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.errors import DataError
from cleaner_env.tasks import private_tests
from cleaner_env.tasks.private_tests import unpack_private_tests


def pack(content):
    return base64.b64encode(zlib.compress(content)).decode()


@given(st.text(), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_pickled_text_of_any_protocol_is_read(text, protocol):
    assert unpack_private_tests(pack(pickle.dumps(text, protocol))) == text


def test_plain_json_is_left_alone():
    text = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    assert unpack_private_tests(text) == text
    assert unpack_private_tests([1]) == [1]


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path, protocol):
    path = tmp_path / "written"
    content = pickle.dumps(Bomb(str(path)), protocol)
    with pytest.raises(DataError, match="does more than hold a text"):
        unpack_private_tests(pack(content))
    assert not path.exists()
    pickle.loads(content).close()
    assert path.exists()  # the bomb would have gone off


@pytest.mark.parametrize("value", [["a"], 1, None, ("a", "b"), {"a": "b"}, b"bytes", len])
def test_other_pickles_are_refused(value):
    with pytest.raises(DataError, match="private_test_cases"):
        unpack_private_tests(pack(pickle.dumps(value)))


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ("not base64!", "neither a JSON list nor base64"),
        (base64.b64encode(b"not zlib").decode(), "not zlib data"),
        (base64.b64encode(zlib.compress(pickle.dumps("x" * 1000))[:-5]).decode(), "cut off"),
        (pack(b""), "not a pickle|hold one text"),
        (pack(b"\x80\x04\x8c\xff"), "not a pickle"),
        (pack(pickle.dumps("x")[:-1]), "not a pickle"),
    ],
)
def test_broken_data_is_refused(packed, message):
    with pytest.raises(DataError, match=message):
        unpack_private_tests(packed)


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(private_tests, "MAX_BYTES", 10_000)
    assert unpack_private_tests(pack(pickle.dumps("x" * 9_000))) == "x" * 9_000
    with pytest.raises(DataError, match="unpacks to more than 10000 bytes"):
        unpack_private_tests(pack(pickle.dumps("x" * 10_000_000)))


@given(st.binary(max_size=200))
def test_random_bytes_are_text_or_refused(content):
    for packed in (pack(content), base64.b64encode(content).decode(), content.decode("latin-1")):
        with suppress(DataError):
            assert isinstance(unpack_private_tests(packed), str)
