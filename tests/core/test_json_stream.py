"""JSON read piece by piece gives what `json` gives, wherever the text is cut."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.core import json_stream
from detcli.core.json_stream import JsonStream

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children)
    ),
    max_leaves=8,
)


def stream(text):
    return JsonStream(io.BytesIO(text.encode("utf-8", "surrogatepass")))


def read(text):
    """Read an object whose member `images` is an array, element by element."""
    content = {}
    reader = stream(text)
    for name in reader.names():
        if name == "images":
            content[name] = list(reader.elements())
        else:
            content[name] = reader.value()
    return content


@pytest.mark.parametrize("number", ["0.5", "1e-5", "1E+5", "-0.25e-3", "123"])
def test_a_number_may_be_cut_anywhere(number, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK_CHARACTERS", 1)
    assert read(f'{{"images": [{number},{number}]}}') == {"images": [float(number)] * 2}


@given(st.dictionaries(st.text(max_size=3), VALUES), st.lists(VALUES), st.integers(1, 9))
def test_what_is_read_is_what_json_reads(members, images, chunk):
    content = {**members, "images": images}
    for indent in (None, 1):
        text = json.dumps(content, indent=indent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_stream, "CHUNK_CHARACTERS", chunk)
            assert read(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"images"',
        '{"images": [',
        '{"images": [1',
        '{"images": [1,]}',
        '{"images": [1 2]}',
        '{"images": {}}',
        '{"a": 1 "b": 2}',
        '{"a": 1,}',
        "{1: 2}",
        '{"a": tru}',
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        read(text)


def test_a_value_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(json_stream, "MAX_LINE_BYTES", 1 << 18)
    with pytest.raises(ValueError, match="a value is longer than"):
        read('{"a": "' + "x" * (1 << 20))


def test_elements_are_read_as_they_are_needed():
    file = io.BytesIO(b'{"images": [' + b"1234567, " * 100_000 + b"1]}")
    reader = JsonStream(file)
    assert next(reader.names()) == "images"
    elements = reader.elements()
    assert next(elements) == 1234567
    assert file.tell() < 200_000
