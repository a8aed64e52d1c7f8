"""Tar files and Parquet as inputs: each member is an image, whatever happens to the others."""

import io
import json
import tarfile

import optional
import pytest
from json_lines import column_of, lines

from detcli.config.inputs import InputOptions
from detcli.source.archives import read_archive
from detcli.source.decode import DecodeOptions
from detcli.source.loading import SourceProgress
from detcli.source.sources import Sources


def add(tar, name, content, **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def image(make_image):
    return make_image("a.png").read_bytes()


@pytest.fixture
def archive(tmp_path, image):
    """A tar file as WebDataset has them, with a member that is damaged."""

    def make(name="00000.tar", mode="w", members=3):
        with tarfile.open(tmp_path / name, mode) as tar:
            for number in range(members):
                add(tar, f"{number:05}.png", image if number != 1 else image[:50])
                add(tar, f"{number:05}.json", json.dumps({"key": number}).encode())
        return tmp_path / name

    return make


def read(path, **inputs):
    """The name of each item, and its size or error."""
    images = []
    options = InputOptions(input_timeout=600, **inputs)  # on a busy machine
    with Sources([str(path)], options) as sources:
        for item in sources:
            item.run()
            size = item.picture and item.picture.size
            images.append((item.origin.source.removeprefix(f"{path}/"), size or str(item.error)))
    return images


def image_names(images):
    """The names of what `read` returns."""
    return [name for name, _ in images]


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar", "w"), ("A.TAR.GZ", "w:gz"), ("a.tgz", "w:gz")]
)
def test_each_image_of_a_tar_file_is_an_input(archive, name, mode):
    images = read(archive(name, mode))
    assert image_names(images) == ["00000.png", "00001.png", "00002.png"]
    assert images[0][1] == images[2][1] == (64, 64)
    assert "damaged PNG" in images[1][1]


def test_a_tar_file_that_is_damaged_ends_with_an_error(archive):
    path = archive(members=30)
    content = path.read_bytes()
    headers = range(0, 30 * 2048, 2048)
    assert len(read(path)) == 30
    cuts = [100, 512, 700] + list(headers[1::9]) + [headers[5] + 512, headers[5] + 700, 60_000]
    for cut in cuts:
        path.write_bytes(content[:cut])
        images = read(path)
        name, error = images.pop()
        assert name == str(path)
        assert "a damaged archive" in error
        assert len(images) <= cut // 2048 + 1
    path.write_bytes(content[:10_240] + b"x" * 512 + content[10_752:])
    assert read(path)[-1] == (str(path), "a damaged archive: it breaks off: invalid header")
    path.write_bytes(b"")
    assert "empty" in read(path)[0][1]


@pytest.mark.parametrize("bomb", [{"name": "a.png"}, {"type": tarfile.GNUTYPE_LONGNAME}])
def test_what_would_fill_memory_is_refused(tmp_path, image, bomb):
    """A member and a name of 64 GB, of which there is only the header."""
    with tarfile.open(path := tmp_path / "a.tar", "w") as tar:
        add(tar, "sound.png", image)
        member = tarfile.TarInfo()
        for field, value in (bomb | {"size": 64 << 30}).items():
            setattr(member, field, value)
        tar.fileobj.write(member.tobuf())
    images = read(path)
    first_image = images.pop(0)
    assert first_image == ("sound.png", (64, 64))
    if "name" in bomb:
        name, error = images.pop(0)
        assert name == "a.png"
        assert "too large: more than" in error
    ((name, error),) = images
    assert name == str(path)
    assert "a damaged archive" in error


def test_names_may_have_a_range_of_numbers(archive, tmp_path):
    for number in (8, 9, 11):
        archive(f"{number:05}.tar", members=1)
    images = read(tmp_path / "{00008..00011}.tar")
    assert image_names(images) == [
        f"{tmp_path}/00008.tar/00000.png",
        f"{tmp_path}/00009.tar/00000.png",
        f"{tmp_path}/00010.tar",
        f"{tmp_path}/00011.tar/00000.png",
    ]
    assert images[2][1] == "no such file"


def test_parquet_with_the_bytes_of_images(tmp_path, image):
    pa, parquet = optional.require("pyarrow"), optional.require("pyarrow.parquet")
    rows = [{"bytes": image, "path": "a.png"}, {"bytes": None, "path": None}]
    rows.append({"bytes": image[:50], "path": None})
    table = pa.table({"label": [1, 2, 3], "image": rows})
    parquet.write_table(table, path := tmp_path / "a.parquet")
    images = read(path)
    assert image_names(images) == ["a.png", "1", "2"]
    assert images[0][1] == (64, 64)
    assert images[1][1] == "it has no bytes"
    content = path.read_bytes()
    for damaged in (content[:200], content[:-4], content[:100] + b"x" * 50 + content[150:]):
        path.write_bytes(damaged)
        for _, error in read(path):
            assert "damaged" in str(error)
    parquet.write_table(table.select(["label"]), path)
    assert read(path)[0][1] == "no column has the bytes of images"


def test_an_archive_on_a_server_is_read_as_a_stream(s3, archive):
    s3.put("a.tar", archive().read_bytes())
    assert image_names(read("s3://photos/a.tar")) == ["00000.png", "00001.png", "00002.png"]
    ((name, error),) = read("s3://photos/b.tar")
    assert name == "s3://photos/b.tar"
    assert error == "cannot be fetched: there is no such object"


def hostile_tar(tmp_path, image):
    """A tar file that ended a run, and the name of its sound image."""
    path = tmp_path / "names.tar"
    with tarfile.open(path, "w") as tar:
        add(tar, "a.png", image)
        member = tarfile.TarInfo("././@LongLink")
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, 6
        tar.fileobj.write((member.tobuf() + b"b.png\0".ljust(512, b"\0")) * 400)
        add(tar, "b.png", image)
    return [path], {f"{path}/a.png"}


def hostile_parquet(tmp_path, _image):
    """Parquet files that ended a run, none with a sound image."""
    pa, parquet = optional.require("pyarrow"), optional.require("pyarrow.parquet")
    paths = []
    for name, value in (("int", 5), ("list", [1, 2]), ("text", "abc")):
        table = pa.table({"image": [{"bytes": value, "path": "a.png"}]})
        paths.append(tmp_path / f"{name}.parquet")
        parquet.write_table(table, paths[-1])
    return paths, set()


@pytest.mark.parametrize("hostile", [hostile_tar, hostile_parquet])
def test_hostile_archives_are_errors_and_the_others_go_on(
    invoke, make_model, make_image, tmp_path, image, hostile
):
    archives, sound = hostile(tmp_path, image)
    last = make_image("last.png")
    journal = tmp_path / "boxes.jsonl"
    command = ["predict"] + archives + [last, "-m", make_model(), "--resume", journal]
    for _ in range(2):
        process = invoke(command)
        assert process.returncode == 3
        assert "bug in detcli" not in process.stderr
        failed_sources = set()
        sound_sources = set()
        for record in lines(journal.read_text()):
            if "error" in record:
                failed_sources.add(record["source"])
            if "detections" in record:
                sound_sources.add(record["source"])
        assert failed_sources == set(map(str, archives))
        assert sound_sources == sound | {str(last)}


def test_a_tar_file_without_its_end_gives_an_error_after_its_images(archive):
    path = archive(members=3)
    boundary = 2 * 1024  # an image and its JSON
    path.write_bytes(path.read_bytes()[:boundary])
    assert read(path) == [
        ("00000.png", (64, 64)),
        (str(path), "a damaged archive: it breaks off: the blocks of zeros at its end are missing"),
    ]


def test_members_of_one_name_are_each_processed_once_with_resume(
    invoke, make_model, tmp_path, image
):
    path = tmp_path / "same.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("1.png", "1.png", "2.png", "1.png"):
            add(tar, name, image)
    journal = tmp_path / "boxes.jsonl"
    command = ["predict", path, "-m", make_model(), "--resume", journal]
    assert invoke(command).returncode == 0
    records = journal.read_text().splitlines(keepends=True)
    assert len(records) == 4
    journal.write_text("".join(records[:2]))  # as after a kill
    for _ in range(2):
        assert invoke(command).returncode == 0
        sources = column_of(lines(journal.read_text()), "source")
        assert sources == [f"{path}/1.png", f"{path}/1.png", f"{path}/2.png", f"{path}/1.png"]


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), TypeError("odd"), KeyError(1)])
def test_whatever_a_parser_raises_is_an_error_record(archive, monkeypatch, error):
    def fail(*_):
        raise error
        yield

    monkeypatch.setattr("detcli.source.tar.read_tar", fail)
    path = archive()
    ((name, text),) = read(path)
    assert name == str(path)
    assert "a damaged archive" in text


@pytest.mark.parametrize("name", ["cut_boundary.tar", "cut_header.tar"])
def test_cut_tar_files_of_others_end_with_an_error(shared, name):
    images = read(shared(f"cases/{name}"))
    source, error = images.pop()
    assert len(images) == 2
    assert source.endswith(name)
    assert "it breaks off" in error


@pytest.mark.parametrize(
    "name", ["longnames400.tar", "paxes.tar", "int.parquet", "list.parquet", "str.parquet"]
)
def test_hostile_archives_of_others_are_one_error(shared, name):
    if name.endswith(".parquet"):
        optional.require("pyarrow")
    source, error = read(shared(f"cases/{name}"))[-1]
    assert source.endswith(name)
    assert "bug" not in error


def items_of(path, progress, stamp=None):
    """The items of an archive, which comes in small chunks."""

    def chunks():
        content = path.read_bytes()
        for start in range(0, len(content), 1024):
            yield content[start : start + 1024]

    return read_archive(str(path), chunks, DecodeOptions(), progress, stamp=stamp)


def test_how_many_images_an_archive_has_is_not_known(archive):
    progress = SourceProgress()
    next(items_of(archive(), progress))
    assert progress.total is None


def test_a_member_has_the_stamp_of_its_archive(archive):
    stamps = [item.origin.file_stamp for item in items_of(archive(), SourceProgress(), "stamp")]
    assert stamps == ["stamp"] * 3


def test_an_archive_is_not_read_on_after_a_stop(archive):
    progress = SourceProgress()
    items = items_of(archive(members=2000), progress)
    next(items)
    progress.stop.set()
    assert len(list(items)) < 1990


@pytest.mark.parametrize(("length", "expected"), [(200, 200), (201, 200)])
def test_what_a_parser_says_is_cut(archive, monkeypatch, length, expected):
    def fail(*_):
        raise ValueError("x" * length)
        yield

    monkeypatch.setattr("detcli.source.tar.read_tar", fail)
    ((_, text),) = read(archive())
    assert text == "a damaged archive: " + "x" * expected


def test_a_video_in_a_tar_file_is_skipped_whatever_it_holds(tmp_path, image):
    with tarfile.open(path := tmp_path / "a.tar", "w") as tar:
        add(tar, "clip.mp4", b"no video at all")
        add(tar, "image-named.mp4", image)
        add(tar, "a.png", image)
    assert read(path) == [("a.png", (64, 64))]
