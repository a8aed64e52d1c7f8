"""`detcli predict` goes on with journals and folders of earlier versions where boxes are the same.

Those noted under `unique` what was asked for, not what the suppression decides, and no `column`.
"""

import pytest
from json_lines import column_of, lines, text_of

from detcli.run.shards.manifest import FIRST_MANIFEST, Manifest, publish
from detcli.run.shards.parts import PartWriter
from detcli.run.shards.store import LocalFolder


def as_noted_earlier(settings):
    earlier = dict(settings, unique=False)
    del earlier["column"]
    return earlier


@pytest.fixture
def earlier_journal(predict, make_images, tmp_path):
    """Write a journal over two images, with the settings that an earlier version noted."""

    def write(options):
        make_images(2)
        predict(f"--resume run.jsonl pics {options}")
        path = tmp_path / "run.jsonl"
        records = lines(path.read_text())
        records[0]["settings"] = as_noted_earlier(records[0]["settings"])
        path.write_text(text_of(records))

    return write


@pytest.fixture
def earlier_folder(predict, make_images, shards_here, tmp_path):  # noqa: ARG001 - it has to be there
    """A folder of an earlier version: a manifest of two shards, and the first one's part."""

    def write(options):
        make_images(2)
        predict(f"-o new/ --shard-size 1 pics {options}")
        new = Manifest(LocalFolder(tmp_path / "new"))
        header = dict(new.header, settings=as_noted_earlier(new.header["settings"]))
        store = LocalFolder(tmp_path / "boxes")
        assert publish(store, FIRST_MANIFEST, header, new.all_names())  # type: ignore[arg-type]
        first = Manifest(store).shard(0)
        (record,) = lines((tmp_path / "new" / new.part(0)).read_text())
        del record["part"]
        with PartWriter(first) as writer:
            writer.add(record)
            assert writer.publish(store, new.part(0))

    return write


@pytest.mark.parametrize("options", ["--nms 0.5", "--nms none"])
def test_a_journal_goes_on(earlier_journal, predict, make_image, tmp_path, options):
    earlier_journal(options)
    make_image("pics/9.png", ("red", 2, 3))

    result = predict(f"--resume run.jsonl pics {options}")

    assert "it had 2 inputs already" in result.stderr
    assert len(lines((tmp_path / "run.jsonl").read_text())) == 3


def test_unique_is_compared_where_boxes_depend_on_it(earlier_journal, predict):
    earlier_journal("--nms none")
    says = "its records were made with unique false instead of true"
    predict("--resume run.jsonl pics --nms none --unique", code=2, says=says)


def test_unique_changes_nothing_where_boxes_are_suppressed(earlier_journal, predict):
    earlier_journal("--nms 0.5")
    predict("--resume run.jsonl pics --nms 0.5 --unique")
    predict("--resume run.jsonl pics --nms 0.6 --unique", code=2, says="nms 0.5 instead of 0.6")


@pytest.mark.parametrize("options", ["--nms 0.5", "--nms none"])
def test_a_folder_of_shards_goes_on_and_is_whole(earlier_folder, predict, invoke, options):
    earlier_folder(options)

    result = predict(f"-o boxes/ pics {options}")

    assert "1 of 2 shards done already" in result.stderr
    merged = invoke("merge", "boxes/")
    sources = column_of(lines(merged.stdout), "source")
    assert sources == ["pics/0000.png", "pics/0001.png"]


def test_a_folder_with_another_unique_is_refused(earlier_folder, predict):
    earlier_folder("--nms none")
    says = "boxes was begun with unique false instead of true"
    predict("-o boxes/ pics --nms none --unique", code=2, says=says)
