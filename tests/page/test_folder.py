"""The folder of a page: ours or empty, and readable at any moment."""

import pages
import pytest
from folders import names_in
from json_lines import column_of
from small_disk import small_disk

from detcli.core.errors import OutputError, UsageError
from detcli.page import folder as folders
from detcli.page.folder import PageFolder, require_apart


@pytest.fixture
def page_path(tmp_path):
    return tmp_path / "page"


def write(path, *sources, resumed=False, inputs=()):
    """Add entries to a page, an image each."""
    page = PageFolder(path, inputs, resumed=resumed)
    page.begin()
    page.describe({"state": "running"})
    for number, source in enumerate(sources):
        name = page.write_image(number, b"small", copy=b"large")
        if page.add({"source": source, "picture": name}):
            page.describe({"state": "running"})
    page.describe({"state": "complete"})
    page.close()


def sources(path):
    """The sources of all entries of a page."""
    return column_of(pages.entries(path), "source")


def test_a_page_holds_what_shows_it_and_what_it_shows(page_path):
    write(page_path, "a", "b")
    names = [".detcli-page", "data", "files", "index.html", "pictures", "thumbnails"]
    assert names_in(page_path) == names
    assert sources(page_path) == ["a", "b"]
    assert pages.runs(page_path) == [{"state": "complete", "chunks": 1, "packed": True}]
    assert pages.images(page_path) == ["0/0/0", "0/0/1"]
    assert list(page_path.glob("files/review.*")) == []
    html = (page_path / "index.html").read_text()
    for name in html.split('"'):
        if name.startswith("files/"):
            assert (page_path / name).is_file()


def test_chunks_end_after_so_many_records_or_bytes(page_path, monkeypatch):
    monkeypatch.setattr(folders, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(folders, "CHUNK_BYTES", 200)
    write(page_path, "a", "b", "c" * 300, "d")
    chunks = {path.name for path in (page_path / "data").glob("[0-9]*")}
    assert chunks == {"0.js", "1.js", "2.js"}
    assert sources(page_path) == ["a", "b", "c" * 300, "d"]


def test_scripts_hold_any_text_as_data(page_path):
    texts = ["</script>", "<!--", "\u2028", "\udcff", "\0", "é😀", '");x("']
    write(page_path, *texts)
    data = (page_path / "data/0.js").read_bytes()
    assert b"<" not in data
    assert data.isascii()
    assert data.count(b"\n") == len(texts)
    assert sources(page_path) == texts


def test_a_page_is_replaced_but_what_others_put_there_stays(page_path):
    write(page_path, "a", "b", "c")
    note = page_path / "pictures/0/0/note.txt"
    note.write_text("a note")
    script = page_path / "data/mine.js"
    script.write_text("a script")
    write(page_path, "d")
    assert sources(page_path) == ["d"]
    assert pages.images(page_path) == ["0/0/0"]
    assert note.read_text() == "a note"
    assert script.read_text() == "a script"


def test_neither_inputs_nor_a_folder_of_other_files_are_written_over(page_path, tmp_path):
    write(page_path, "a", "b")
    image = page_path / "pictures/0/0/1.jpg"
    with pytest.raises(UsageError, match="is one of the inputs"):
        write(page_path, "c", inputs=[image])
    assert image.exists()
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="has other files in it"):
        PageFolder(tmp_path)
    assert names_in(tmp_path) == [page_path.name, "thesis.txt"]


def test_no_link_is_followed(page_path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write(page_path)
    (page_path / "pictures").rmdir()
    (page_path / "pictures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link out of the page"):
        write(page_path, "a")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_page_stays_until_the_next_one_begins_which_waits_its_turn(page_path):
    write(page_path, "a")
    page = PageFolder(page_path)
    with pytest.raises(UsageError, match="another run is writing"):
        PageFolder(page_path)
    page.close()
    assert sources(page_path) == ["a"]
    assert pages.images(page_path) == ["0/0/0"]
    write(page_path, "b")


def test_a_run_goes_on_with_the_records_of_another(page_path):
    write(page_path, "a", "b")
    write(page_path, "c", "d", resumed=True)
    assert sources(page_path) == ["a", "b", "c", "d"]
    assert column_of(pages.runs(page_path), "chunks") == [1, 1]
    assert pages.images(page_path) == ["0/0/0", "0/0/1", "1/0/0", "1/0/1"]


@pytest.mark.parametrize("torn", [b'add({"sour', b"\0" * 100, b"\n", b'add({"source":"x"}'])
def test_what_a_kill_has_torn_is_cut_off(page_path, torn):
    write(page_path, "a", "b")
    with (page_path / "data/0.js").open("ab") as file:
        file.write(torn)
    (page_path / "data/1.js").write_bytes(b'add({"source":"never counted"});\n')
    write(page_path, "c", resumed=True)
    assert sources(page_path) == ["a", "b", "c"]


def test_a_page_of_another_version_is_not_gone_on_with(page_path):
    write(page_path, "a")
    for text in ("", "runs(", "runs(3, []);\n", 'runs(1, [{"chunks":"x"}]);\n', "é"):
        (page_path / "data/runs.js").write_text(text)
        with pytest.raises(UsageError, match="not written by this version"):
            write(page_path, "b", resumed=True)
    write(page_path, "b")
    assert sources(page_path) == ["b"]


def test_a_full_disk_leaves_whole_lines(page_path):
    page = PageFolder(page_path)
    page.begin()
    page.describe({"state": "running"})

    def fill():
        for number in range(500):
            if page.add({"source": str(number) * 100}):
                page.describe({"state": "running"})

    with small_disk(20_000), pytest.raises(OutputError, match="cannot write"):
        fill()
    page.close()
    assert 10 < len(sources(page_path)) < 500


def test_nothing_else_is_written_into_the_folder(page_path, tmp_path):
    require_apart(None, [page_path])
    require_apart(page_path, [None, tmp_path, tmp_path / "page2", page_path / "../x.json"])
    (tmp_path / "link").symlink_to(page_path)
    names = ("page", "page/x.json", "page/new/x.json", "link/x.json")
    for name in names:
        with pytest.raises(UsageError, match="holds nothing else"):
            require_apart(page_path, [tmp_path / name])
