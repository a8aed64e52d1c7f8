"""`detcli predict -o FOLDER/`: images that were exchanged under their old names."""

import os

import pytest
from json_lines import detections_by_source, lines, records_with, text_of

LATER_S = 3_000_000_000  # no file that a test writes has this time by itself


@pytest.fixture
def shards_of_two(predict, make_images, tmp_path, shards_here):  # noqa: ARG001 - it only has to be there
    """Run in shards of two, over a folder of four images."""
    images = make_images(4)

    def run(line="pics --shard-size 2", *, code=0, says=""):
        return predict(f"-o boxes/ --conf 0.5 {line}", code=code, says=says)

    def exchange(name, replacement="0000.png", seconds=LATER_S):
        path = images / name
        path.write_bytes((images / replacement).read_bytes())
        os.utime(path, (seconds, seconds))

    run.pictures, run.exchange, run.folder = images, exchange, tmp_path / "boxes"  # type: ignore[attr-defined]
    return run


@pytest.fixture
def merged(invoke, shards_of_two):
    """The records of the merged parts."""

    def merge():
        result = invoke("merge", "boxes/", cwd=shards_of_two.pictures.parent)
        return lines(result.stdout)

    return merge


def test_an_exchanged_image_is_named_and_processed_with_extend(shards_of_two, merged, predict):
    shards_of_two()
    shards_of_two.exchange("0001.png")

    result = shards_of_two(code=3, says="1 file has changed since it was listed: pics/0001.png\n")
    assert "hint: add --extend to process them as they are now, in further shards" in result.stderr
    assert "2 of 2 shards done already" in result.stderr
    assert "1 file has changed" in shards_of_two("pics -q", code=3).stderr

    assert "changed" not in shards_of_two("pics --extend").stderr
    assert "changed" not in shards_of_two("pics").stderr
    alone = lines(predict("pics --conf 0.5").stdout)
    assert detections_by_source(merged()) == detections_by_source(alone)


def test_an_image_put_back_is_processed_again_too(shards_of_two, merged):
    first = shards_of_two.pictures / "0001.png"
    content = first.read_bytes()
    time_s = first.stat().st_mtime
    shards_of_two()
    shards_of_two.exchange("0001.png")
    shards_of_two("pics --extend")
    first.write_bytes(content)
    os.utime(first, (time_s, time_s))

    shards_of_two(code=3, says="1 file has changed")
    shards_of_two("pics --extend", says="listed 1 input")

    (record,) = [record for record in merged() if record["source"] == "pics/0001.png"]
    assert record["detections"] == []


def test_what_was_retried_has_not_changed_until_it_changes_again(shards_of_two, merged):
    shards_of_two()
    (shards_of_two.folder / "part-00000.jsonl").unlink()
    shards_of_two.exchange("0001.png")
    shards_of_two(code=3, says="0001.png: it has changed since it was listed")
    assert "changed since it was listed" not in shards_of_two("pics --retry-failed").stderr
    assert "changed" not in shards_of_two("pics").stderr
    assert records_with(merged(), "file_stamp") == []

    shards_of_two.exchange("0001.png", "0003.png", LATER_S + 1)
    shards_of_two(code=3, says="1 file has changed since it was listed: pics/0001.png")


def test_images_of_a_list_with_meta_have_stamps_too(shards_of_two, tmp_path):
    names = sorted(shards_of_two.pictures.iterdir())
    entries = [{"path": f"pics/{path.name}", "meta": {"id": path.stem}} for path in names]
    listed = text_of(entries)
    (tmp_path / "list.jsonl").write_text(listed)
    line = "--files-from list.jsonl --shard-size 2"
    shards_of_two(line)
    shards_of_two.exchange("0002.png")
    shards_of_two(line, code=3, says="1 file has changed since it was listed: pics/0002.png")
    shards_of_two(f"{line} --extend", says="listed 1 input")
    assert "changed" not in shards_of_two(line).stderr


def test_a_changed_file_of_no_part_yet_is_an_error_record_as_before(shards_of_two):
    shards_of_two()
    (shards_of_two.folder / "part-00001.jsonl").unlink()
    shards_of_two.exchange("0003.png", "0001.png")
    shards_of_two("", code=3, says="0003.png: it has changed since it was listed")


def test_many_changed_images_are_counted(shards_of_two):
    shards_of_two()
    for path in shards_of_two.pictures.iterdir():
        os.utime(path, (LATER_S, LATER_S))
    result = shards_of_two(code=3, says="4 files have changed since they were listed: ")
    assert "pics/0002.png, ...\n" in result.stderr
    assert "pics/0003.png" not in result.stderr


def test_an_exchanged_object_is_named(predict, stored, s3, shards_here):  # noqa: ARG001
    folder = stored(3)
    predict("s3://photos/pics/ --conf 0.5 -o boxes/")
    s3.put("pics/0001.png", (folder / "0000.png").read_bytes())
    line = "s3://photos/pics/ --conf 0.5 -o boxes/"
    predict(line, code=3, says="1 file has changed since it was listed: s3://photos/pics/0001.png")
    predict(f"{line} --extend", says="listed 1 input")
