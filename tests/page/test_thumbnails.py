"""Packs of thumbnails: in their order, whole, and on the disk when it matters."""

import os
import stat
import sys
from pathlib import Path

import pages
import pytest

from detcli.page import thumbnails as module
from detcli.page.folder import PageFolder
from detcli.page.thumbnails import ThumbnailPacks, repair_last_pack


@pytest.fixture
def page_path(tmp_path):
    return tmp_path / "page"


@pytest.fixture
def synced(monkeypatch):
    """Names of the files that are put on the disk, in their order."""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    names = []
    fsync = os.fsync

    def note_and_sync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        is_temporary = path.suffix == ".part"
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and not is_temporary:
            names.append("/".join(path.parts[-4:]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    return names


def add_images(page, count):
    """Add records, each with an image."""
    for number in range(count):
        name = page.write_image(number, b"small", copy=b"large")
        if page.add({"source": str(number), "picture": name}):
            page.describe({"state": "running"})


def begun(path, *, resumed=False):
    """A page to which records can be added."""
    page = PageFolder(path, resumed=resumed)
    page.begin()
    page.describe({"state": "running"})
    return page


def test_a_pack_ends_after_so_many_thumbnails(page_path, monkeypatch):
    monkeypatch.setattr(module, "PACK_IMAGES", 2)
    page = begun(page_path)
    add_images(page, 5)
    page.close()
    names = ["0/0/0", "0/0/1", "0/1/2", "0/1/3", "0/2/4"]
    assert list(column(page_path)) == names
    assert pages.images(page_path) == names
    assert pages.packed_thumbnails(page_path) == dict.fromkeys(names, b"small")


def column(page_path):
    """The names of the images of all records."""
    for entry in pages.entries(page_path):
        yield entry["picture"]


def test_a_pack_ends_after_so_many_bytes(page_path, monkeypatch):
    monkeypatch.setattr(module, "PACK_BYTES", 60)
    page = begun(page_path)
    add_images(page, 4)
    page.close()
    assert list(column(page_path)) == ["0/0/0", "0/0/1", "0/1/2", "0/1/3"]


def test_a_thumbnail_is_there_before_its_pack_ends(page_path):
    page = begun(page_path)
    add_images(page, 1)
    assert pages.packed_thumbnails(page_path) == {"0/0/0": b"small"}
    page.close()


@pytest.mark.parametrize("torn", [b'thumbnail("0/1/4", "c21', b"\0" * 100, b"\n"])
def test_what_a_kill_has_torn_is_cut_off_the_last_pack(page_path, monkeypatch, torn):
    monkeypatch.setattr(module, "PACK_IMAGES", 3)
    page = begun(page_path)
    add_images(page, 4)
    page.close()
    with (page_path / "thumbnails/0/1.js").open("ab") as file:
        file.write(torn)
    page = begun(page_path, resumed=True)
    add_images(page, 1)
    page.close()
    assert pages.images(page_path) == ["0/0/0", "0/0/1", "0/0/2", "0/1/3", "1/0/0"]


def test_a_run_without_thumbnails_has_no_pack_to_repair(tmp_path):
    repair_last_pack(tmp_path / "0")
    assert not (tmp_path / "0").exists()
    ThumbnailPacks(tmp_path / "0").end_pack()
    assert not (tmp_path / "0").exists()


def test_a_page_is_replaced_with_its_packs(page_path, monkeypatch):
    monkeypatch.setattr(module, "PACK_IMAGES", 1)
    page = begun(page_path)
    add_images(page, 3)
    page.close()
    page = begun(page_path)
    add_images(page, 1)
    page.close()
    assert pages.packed_thumbnails(page_path).keys() == {"0/0/0"}


def test_a_page_with_a_file_for_each_thumbnail_is_continued(page_path):
    page = begun(page_path)
    add_images(page, 1)
    page.close()
    (page_path / "thumbnails/0/0.js").unlink()
    old_thumbnail = page_path / "thumbnails/0/0/0.jpg"
    old_thumbnail.parent.mkdir()
    old_thumbnail.write_bytes(b"small")
    (page_path / "data/runs.js").write_text('runs(1, [{"chunks":1}]);\n')
    page = begun(page_path, resumed=True)
    add_images(page, 1)
    page.close()
    assert [run.get("packed") for run in pages.runs(page_path)] == [None, True]
    assert list(column(page_path)) == ["0/0/0", "1/0/0"]
    assert old_thumbnail.read_bytes() == b"small"
    begun(page_path).close()  # and a new page removes it
    assert not old_thumbnail.exists()


def test_a_page_alone_is_synced_once_a_pack_and_a_chunk(page_path, synced):
    page = begun(page_path)
    add_images(page, 20)
    assert synced == []
    page.close()
    assert synced == ["page/thumbnails/0/0.js", f"{page_path.parent.name}/page/data/0.js"]


def test_with_a_resume_file_each_image_is_on_the_disk_before_that_is(page_path, synced):
    page = begun(page_path, resumed=True)
    add_images(page, 2)
    assert synced == []
    page.sync()
    chunk = f"{page_path.parent.name}/page/data/0.js"
    pack = "page/thumbnails/0/0.js"
    assert synced == ["pictures/0/0/0.jpg", "pictures/0/0/1.jpg", pack, chunk]
    synced.clear()
    page.sync()
    assert synced == [pack, chunk]
    page.close()


def test_an_image_that_was_dropped_need_not_be_synced(page_path, synced):
    page = begun(page_path, resumed=True)
    add_images(page, 2)
    page.remove_image("0/0/0")
    page.sync()
    assert "pictures/0/0/0.jpg" not in synced
    assert "pictures/0/0/1.jpg" in synced
    page.close()
