"""Parquet as an input: which column has the images, and what holds none."""

import io
import json
import random as chances

import optional
import pytest

from detcli.core.errors import DecodeError
from detcli.source.columns import read_parquet

pa = optional.require("pyarrow")
parquet = optional.require("pyarrow.parquet")

IMAGES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LIMIT = 1000


def encoded(**columns):
    file = io.BytesIO()
    try:
        parquet.write_table(pa.table(columns), file)
    except pa.ArrowNotImplementedError as error:  # of views, by pyarrow 18
        pytest.skip(str(error))
    return file.getvalue()


def read(content, column=None):
    return list(read_parquet(io.BytesIO(content), LIMIT, column))


def images(*contents, kind=IMAGES):
    return pa.array([{"bytes": content, "path": None} for content in contents], kind)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)])
def test_bytes_of_every_binary_type_are_read(kind):
    column = images(b"abc", None, kind=pa.struct([("bytes", kind), ("path", pa.string())]))
    (name, content), (_, error) = read(encoded(image=column))
    assert name == "0"
    assert content == b"abc"
    assert str(error) == "it has no bytes"


def test_bytes_in_a_dictionary_are_read():
    contents = pa.array([b"abc", b"abc"]).dictionary_encode()
    content = encoded(image=contents)
    assert read(content, "image") == [("0", b"abc"), ("1", b"abc")]


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.string(), pa.list_(pa.uint8()), pa.null(), pa.bool_(), pa.date32()]
    + [pa.struct([("bytes", pa.binary())]), pa.list_(pa.binary()), pa.float64()],
)
def test_bytes_of_another_type_are_an_error(kind):
    column = images(None, kind=pa.struct([("bytes", kind), ("path", pa.string())]))
    with pytest.raises(DecodeError, match=r"no column has the bytes of images: image is struct<"):
        read(encoded(image=column))


@pytest.mark.parametrize("kind", [pa.int64(), pa.null(), pa.list_(pa.string()), pa.binary()])
def test_paths_that_are_no_texts_give_way_to_numbers(kind):
    column = images(b"abc", kind=pa.struct([("bytes", pa.binary()), ("path", kind)]))
    assert read(encoded(image=column)) == [("0", b"abc")]


def test_a_path_that_is_not_utf_8_is_read():
    paths = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff.")]
    )
    column = pa.StructArray.from_arrays([pa.array([b"abc"]), paths], ["bytes", "path"])
    ((name, _),) = read(encoded(image=column))
    assert name == "\udcff."


def test_a_missing_row_has_no_bytes():
    ((_, error),) = read(encoded(image=pa.array([None], IMAGES)))
    assert str(error) == "it has no bytes"


def test_too_many_bytes_are_an_error():
    ((_, error),) = read(encoded(image=images(b"x" * (LIMIT + 1))))
    assert str(error) == "too large: more than 1000 bytes"


def test_two_columns_of_images_are_asked_about():
    content = encoded(mask=images(b"mask"), image=images(b"image"))
    with pytest.raises(DecodeError) as caught:
        read(content)
    assert str(caught.value) == "2 columns have the bytes of images: mask, image"
    assert caught.value.hint == "name one with --column, as in --column image"
    assert read(content, "mask") == [("0", b"mask")]
    assert read(content, "image") == [("0", b"image")]


def test_a_column_of_plain_bytes_is_read_if_it_is_named():
    content = encoded(image=pa.array([b"abc"]))
    with pytest.raises(DecodeError) as caught:
        read(content)
    assert caught.value.hint == "if the column image has images, name it with --column image"
    assert read(content, "image") == [("0", b"abc")]


def test_a_column_that_has_no_images_or_is_not_there_is_refused():
    content = encoded(image=images(b"abc"), label=pa.array([1]))
    with pytest.raises(DecodeError, match="it has no column 'mask'"):
        read(content, "mask")
    with pytest.raises(DecodeError, match="the column 'label' has no bytes of images: int64"):
        read(content, "label")


def test_two_columns_of_one_name_are_refused():
    file = io.BytesIO()
    table = pa.Table.from_arrays([images(b"a"), images(b"b")], ["image", "image"])
    parquet.write_table(table, file)
    with pytest.raises(DecodeError, match="2 columns are called 'image'"):
        read(file.getvalue(), "image")


def test_a_name_with_dots_is_no_path():
    content = encoded(**{"a.b": images(b"abc"), "a": pa.array([{"b": 1}])})
    assert read(content) == [("0", b"abc")]


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_ends_in_an_exception_or_in_bytes(seed):
    draw = chances.Random(seed)  # noqa: S311
    contents = [draw.randbytes(20) for _ in range(40)]
    content = bytearray(encoded(image=images(*contents)))
    for _ in range(draw.randint(1, 6)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    try:
        rows = read(bytes(content))
    except Exception:  # noqa: BLE001 - whatever pyarrow raises
        return
    for _, entry in rows:
        assert isinstance(entry, bytes | DecodeError)


def test_predict_asks_which_column_and_goes_on(invoke, make_model, make_image, tmp_path):
    image = make_image("a.png").read_bytes()
    two = tmp_path / "two.parquet"
    two.write_bytes(encoded(mask=images(None, None), image=images(image, image)))
    run = [two, tmp_path / "a.png", "-m", make_model(), "--format", "jsonl"]
    result = invoke("predict", run)
    first, second = map(json.loads, result.stdout.splitlines())
    assert result.returncode == 3
    assert first["error"]["message"] == "2 columns have the bytes of images: mask, image"
    assert "detections" in second
    result = invoke("predict", run, "--column", "image")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == 3


def test_as_many_bytes_as_the_limit_are_read():
    content = b"x" * LIMIT
    assert read(encoded(image=images(content))) == [("0", content)]


def test_an_image_above_the_limit_leaves_the_others():
    column = images(b"before", b"x" * (LIMIT + 1), b"after")
    before, (name, error), after = read(encoded(image=column))
    assert before == ("0", b"before")
    assert name == "1"
    assert isinstance(error, DecodeError)
    assert after == ("2", b"after")


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.binary(LIMIT + 1)])
def test_an_image_above_the_limit_is_an_error_in_every_binary_type(kind):
    column = pa.array([b"x" * (LIMIT + 1)], kind)
    ((_, error),) = read(encoded(image=column), "image")
    assert str(error) == "too large: more than 1000 bytes"


def test_an_image_above_the_limit_in_a_dictionary_is_an_error():
    column = pa.array([b"x" * (LIMIT + 1)]).dictionary_encode()
    ((_, error),) = read(encoded(image=column), "image")
    assert str(error) == "too large: more than 1000 bytes"


@pytest.mark.parametrize(("count", "ends"), [(10, "c9"), (11, ", ...")])
def test_an_error_names_ten_columns(count, ends):
    columns = {f"c{number}": pa.array([1]) for number in range(count)}
    with pytest.raises(DecodeError) as caught:
        read(encoded(**columns), "image")
    assert caught.value.hint.endswith(ends)
    assert "c10" not in caught.value.hint


def test_a_long_type_is_cut_in_an_error():
    fields = []
    row = {}
    for number in range(100):
        fields.append((f"field{number}", pa.int64()))
        row[f"field{number}"] = 1
    kind = pa.struct(fields)
    column = pa.array([row], kind)
    with pytest.raises(DecodeError) as caught:
        read(encoded(label=column), "label")
    _, _, described = str(caught.value).partition("no bytes of images: ")
    assert described == str(kind)[:100]


def test_rows_of_many_batches_are_numbered_through():
    contents = [f"image {number}".encode() for number in range(40)]
    rows = read(encoded(image=images(*contents)))
    assert len(rows) == 40
    for number, (name, content) in enumerate(rows):
        assert name == str(number)
        assert content == contents[number]
