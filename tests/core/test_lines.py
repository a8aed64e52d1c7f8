"""Text in the encodings that programs on Windows write, and lines that have a limit."""

import codecs
import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_lines import column_of, lines
from saved_records import box, record

from detcli.core import lines as lines_module
from detcli.core.errors import SourceError, UsageError
from detcli.core.lines import bounded_lines, decoded, read_bounded, utf8_chunks, utf8_file
from detcli.run.saved import read_records
from detcli.storage.files import open_lines, read_json, read_text

MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


def marked(text, encoding):
    return MARKED[encoding] + text.encode(encoding)


@pytest.fixture(params=MARKED)
def encoding(request):
    return request.param


@pytest.fixture
def short_lines(monkeypatch):
    """A limit that tests reach soon."""
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("detcli.source.names.MAX_LINE_BYTES", 1 << 20)


def cut_apart(data, size):
    """Chunks of `size` bytes; the last may be shorter."""
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    size=st.integers(1, 7),
    encoding=st.sampled_from(list(MARKED)),
)
def test_marked_text_is_utf_8_however_it_is_cut(text, size, encoding):
    data = marked(f"a{text}", encoding)
    chunks = cut_apart(data, size)
    assert b"".join(utf8_chunks(chunks)).decode() == f"a{text}"
    assert decoded(data) == f"a{text}"


@given(data=st.binary(), size=st.integers(1, 7))
def test_bytes_without_a_mark_stay_as_they_are(data, size):
    data = b"a" + data
    chunks = cut_apart(data, size)
    assert b"".join(utf8_chunks(chunks)) == data


def test_a_name_that_begins_like_a_mark_has_no_zeros():
    assert b"".join(utf8_chunks([b"\xff\xfe.jpg\n"])) == b"\xff\xfe.jpg\n"


def test_a_text_that_ends_within_a_character_is_an_error():
    with pytest.raises(UnicodeDecodeError):
        list(utf8_chunks([marked("ab", "utf-16-le")[:-1]]))


def test_text_is_passed_on_before_it_ends():
    chunks = utf8_chunks(iter([b"\xff\xfea\0", b"b\0", b""]))
    assert next(chunks) == b"a"
    assert next(chunks) == b"b"


def test_text_files_are_read_as_their_mark_tells(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes(marked("ä\r\nb", encoding))
    assert read_text(path) == "ä\r\nb"
    with open_lines(path) as file:
        assert file.read().decode() == "ä\r\nb"
    path.write_bytes(gzip.compress(marked("[1]", encoding)))
    assert read_json(path, lambda *_: UsageError("")) == [1]


def test_a_line_has_a_limit(short_lines):  # noqa: ARG001
    file = utf8_file(io.BytesIO(b"a\n" + b" " * 3_000_000))
    reading = bounded_lines(file)
    assert next(reading) == b"a\n"
    with pytest.raises(ValueError, match="longer than 1 MiB, the limit of a line"):
        next(reading)


@pytest.mark.parametrize(("excess", "is_read"), [(0, True), (1, False)])
def test_a_line_may_be_as_long_as_the_limit(short_lines, excess, is_read):  # noqa: ARG001
    line = b" " * ((1 << 20) + excess)
    if is_read:
        assert list(bounded_lines(io.BytesIO(line))) == [line]
    else:
        with pytest.raises(ValueError, match="longer than 1 MiB"):
            next(bounded_lines(io.BytesIO(line)))


def test_what_is_read_at_once_has_a_limit():
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_bounded(io.BytesIO(bytes(2_000_000)), (1 << 20) - 1)


@pytest.fixture
def long_line(tmp_path):
    """A compressed file of spaces, of one line."""
    path = tmp_path / "spaces.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 3_000_000))
    return path


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize(
    "command",
    [
        ("report", "spaces.jsonl.gz", "-o", "page"),
        ("verify", "spaces.jsonl.gz", "spaces.jsonl.gz"),
        ("predict", "a.png", "--resume", "spaces.jsonl"),
    ],
)
def test_commands_refuse_a_line_that_is_too_long(
    invoke, make_model, make_image, tmp_path, long_line, command
):
    make_image("a.png")
    (tmp_path / "spaces.jsonl").write_bytes(gzip.decompress(long_line.read_bytes()))
    options = ("-m", make_model()) if command[0] == "predict" else ()
    result = invoke(command, options, cwd=tmp_path)
    assert result.returncode == 2
    assert "it is longer than 1 MiB, the limit of a line" in result.stderr


@pytest.mark.usefixtures("short_lines")
def test_a_list_with_a_line_that_is_too_long_goes_on(invoke, make_model, make_image, tmp_path):
    make_image("a.png")
    long_json = b'{"image": "' + b"x" * 3_000_000 + b'"}\n'
    (tmp_path / "list").write_bytes(b" " * 3_000_000 + b"\n" + long_json + b"a.png\n")
    command = ("predict", "--files-from", "list", "-m", make_model(), "--format", "jsonl")
    result = invoke(command, cwd=tmp_path)
    spaces, image, last = lines(result.stdout)
    assert "more than 65536 bytes" in spaces["error"]["message"]
    assert "more than 1048576 bytes" in image["error"]["message"]
    assert last["source"] == "a.png"


@pytest.mark.usefixtures("short_lines")
def test_parts_and_manifests_with_a_line_that_is_too_long_are_damaged(
    invoke, detcli, make_model, make_image, tmp_path
):
    make_image("a.png")
    command = ("predict", "a.png", "-m", make_model(), "-o", "boxes/")
    assert detcli(command, cwd=tmp_path).returncode == 0
    part = tmp_path / "boxes/part-00000.jsonl"
    part.write_bytes(b" " * 3_000_000 + part.read_bytes())
    result = invoke("merge", "boxes", cwd=tmp_path)
    assert result.returncode == 6
    assert "it is longer than 1 MiB" in result.stderr
    manifest = tmp_path / "boxes/_manifest.jsonl"
    manifest.write_bytes(b" " * 3_000_000 + manifest.read_bytes())
    result = invoke("merge", "boxes", cwd=tmp_path)
    assert result.returncode == 2
    assert "it is longer than 1 MiB" in result.stderr


@pytest.mark.usefixtures("short_lines")
def test_a_shard_whose_names_take_too_long_a_line_is_refused(
    invoke, make_model, make_image, tmp_path
):
    make_image("a.png")
    names = ""
    for number in range(6000):
        names += f"{'x' * 200}{number}.jpg\n"
    (tmp_path / "list").write_text(names)
    command = ("predict", "--files-from", "list", "-m", make_model(), "-o", "boxes/")
    result = invoke(command, "--shard-size", 6000, cwd=tmp_path)
    assert result.returncode == 2
    assert "smaller --shard-size" in result.stderr


@pytest.fixture
def folder_with_lists(tmp_path, monkeypatch, make_image):
    monkeypatch.chdir(tmp_path)
    make_image("a.png", ("red", 2, 2))
    make_image("猫.png", ("red", 2, 2))
    return tmp_path


@pytest.mark.usefixtures("folder_with_lists")
def test_lists_are_read_as_their_mark_tells(invoke, make_model, folder_with_lists, encoding):
    (folder_with_lists / "list").write_bytes(
        marked('a.png\r\n{"path": "猫.png", "meta": 1}\r\n', encoding)
    )
    result = invoke("predict", "--files-from", "list", "-m", make_model(), "--format", "jsonl")
    assert result.returncode == 0
    assert column_of(lines(result.stdout), "source") == ["a.png", "猫.png"]


def test_the_list_of_another_is_read(shared):
    path = shared("cases/list16le.txt")
    assert path.read_bytes().startswith(codecs.BOM_UTF16_LE)
    names = b"".join(utf8_chunks([path.read_bytes()])).decode().split()
    assert names
    for name in names:
        assert "\0" not in name


def test_names_zones_and_defaults_are_read_as_their_mark_tells(
    invoke, make_model, folder_with_lists, monkeypatch, encoding
):
    (folder_with_lists / "names.txt").write_bytes(marked("rot\r\ngrün\r\nblau\r\n", encoding))
    (folder_with_lists / "zones.txt").write_bytes(marked("tür=0,0,1,0,1,1,0,1\r\n", encoding))
    (folder_with_lists / "detcli.toml").write_bytes(marked('names = "names.txt"\r\n', encoding))
    monkeypatch.setenv("DETCLI_CONFIG", "detcli.toml")
    model = make_model()
    result = invoke("predict", "a.png", "-m", model, "--zone", "@zones.txt", "--format", "jsonl")
    assert result.returncode == 0, result.stderr
    (answer,) = lines(result.stdout)
    assert answer["detections"][0]["class_name"] == "rot"
    assert answer["detections"][0]["zones"] == ["tür"]


def test_records_that_powershell_redirected_are_read(invoke, folder_with_lists, encoding):
    records = [record("a.png", box()), record("猫.png", box())]
    text = "\r\n".join(json.dumps(fields, ensure_ascii=False) for fields in records)
    (folder_with_lists / "boxes.jsonl").write_bytes(marked(f"{text}\r\n", encoding))
    (folder_with_lists / "boxes").write_bytes(marked(text, encoding))  # without a suffix
    assert column_of(read_records("boxes.jsonl"), "source") == ["a.png", "猫.png"]
    result = invoke("report", "boxes.jsonl", "-o", "page")
    assert result.returncode == 0, result.stderr
    if encoding != "utf-32-be":  # which begins like nothing that is looked for
        result = invoke("verify", "boxes", "boxes.jsonl", "--format", "json")
        assert json.loads(result.stdout)["agree"]


def test_records_that_end_within_a_character_cannot_be_read(folder_with_lists):
    text = json.dumps(record("a.png", box()))
    (folder_with_lists / "boxes.jsonl").write_bytes(marked(f"{text}\n", "utf-16-le") + b"x")
    with pytest.raises(SourceError, match="cannot read boxes"):
        list(read_records("boxes.jsonl"))


def test_marks_are_read_as_their_mark_tells(invoke, folder_with_lists, encoding):
    (folder_with_lists / "boxes.jsonl").write_text(json.dumps(record("a.png", box())))
    marks = [{"mark": "drop", "source": "a.png"}]
    (folder_with_lists / "marks.json").write_bytes(marked(json.dumps(marks), encoding))
    result = invoke("report", "boxes.jsonl", "--apply", "marks.json", "-o", "page")
    assert result.returncode == 0, result.stderr
    assert "wrote a page of 0 records" in result.stderr


def test_labels_and_their_description_are_read_as_their_mark_tells(
    invoke, make_model, folder_with_lists, encoding
):
    (folder_with_lists / "data.yaml").write_bytes(
        marked("val: .\r\nnames: [red, green, blue]\r\n", encoding)
    )
    result = invoke("predict", "a.png", "-m", make_model(), "--format", "jsonl")
    (answer,) = lines(result.stdout)
    first = answer["detections"][0]
    width = first["x2"] - first["x1"]
    height = first["y2"] - first["y1"]
    middle_x = first["x1"] + width / 2
    middle_y = first["y1"] + height / 2
    label = f"0 {middle_x / 64} {middle_y / 64} {width / 64} {height / 64}\r\n"
    for name in ("a", "猫"):
        (folder_with_lists / f"{name}.txt").write_bytes(marked(label, encoding))
    result = invoke("eval", make_model(), "--data", "data.yaml", "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["metrics"]["map50"] == pytest.approx(1)


def test_a_journal_in_utf_16_cannot_be_continued(invoke, make_model, folder_with_lists):
    (folder_with_lists / "boxes.jsonl").write_bytes(
        marked(json.dumps(record("a.png")) + "\n", "utf-16-le")
    )
    result = invoke("predict", "a.png", "-m", make_model(), "--resume", "boxes.jsonl")
    assert result.returncode == 2
    assert "it is UTF-16, as PowerShell's > writes" in result.stderr
