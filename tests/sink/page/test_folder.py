"""The folder of a page: ours or empty, and readable at any moment."""

import pages
import pytest
from small_disk import small_disk

from detcli.core.errors import OutputError, UsageError
from detcli.sink.page import folder as folders
from detcli.sink.page.folder import PageFolder, require_apart


@pytest.fixture
def place(tmp_path):
    return tmp_path / "page"


def write(place, *sources, resumed=False, inputs=()):
    """Add entries to a page, a picture each."""
    page = PageFolder(place, inputs, resumed=resumed)
    page.begin()
    page.describe({"state": "running"})
    for number, source in enumerate(sources):
        name = page.write_picture(number, b"large", b"small")
        if page.add({"source": source, "picture": name}):
            page.describe({"state": "running"})
    page.describe({"state": "complete"})
    page.close()


def sources(place):
    return [entry["source"] for entry in pages.entries(place)]


def test_a_page_holds_what_shows_it_and_what_it_shows(place):
    write(place, "a", "b")
    names = {".detcli-page", "data", "files", "index.html", "pictures", "thumbnails"}
    assert {path.name for path in place.iterdir()} == names
    assert sources(place) == ["a", "b"]
    assert pages.runs(place) == [{"state": "complete", "chunks": 1}]
    assert pages.pictures(place) == ["0/0/0", "0/0/1"]
    html = (place / "index.html").read_text()
    assert all((place / name).is_file() for name in html.split('"') if name.startswith("files/"))


def test_chunks_end_after_so_many_records_or_bytes(place, monkeypatch):
    monkeypatch.setattr(folders, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(folders, "CHUNK_BYTES", 200)
    write(place, "a", "b", "c" * 300, "d")
    assert sorted(path.name for path in (place / "data").glob("[0-9]*")) == [
        *("0.js", "1.js", "2.js")
    ]
    assert sources(place) == ["a", "b", "c" * 300, "d"]


def test_scripts_hold_any_text_as_data(place):
    texts = ["</script>", "<!--", "\u2028", "\udcff", "\0", "é😀", '");x("']
    write(place, *texts)
    data = (place / "data/0.js").read_bytes()
    assert b"<" not in data
    assert data.isascii()
    assert data.count(b"\n") == len(texts)
    assert sources(place) == texts


def test_a_page_is_replaced_but_what_others_put_there_stays(place):
    write(place, *"abc")
    ours = place / "pictures/0/0/note.txt"
    ours.write_text("mine")
    (place / "data/mine.js").write_text("mine")
    write(place, "d")
    assert sources(place) == ["d"]
    assert pages.pictures(place) == ["0/0/0"]
    assert ours.read_text() == (place / "data/mine.js").read_text() == "mine"


def test_neither_inputs_nor_a_folder_of_other_files_are_written_over(place, tmp_path):
    write(place, *"ab")
    picture = place / "pictures/0/0/1.jpg"
    with pytest.raises(UsageError, match="is one of the inputs"):
        write(place, "c", inputs=[picture])
    assert picture.exists()
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="has other files in it"):
        PageFolder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.txt", place.name}


def test_no_link_is_followed(place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write(place)
    (place / "pictures").rmdir()
    (place / "pictures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link out of the page"):
        write(place, "a")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_page_stays_until_the_next_one_begins_which_waits_its_turn(place):
    write(place, "a")
    page = PageFolder(place)
    with pytest.raises(UsageError, match="another run is writing"):
        PageFolder(place)
    page.close()
    assert sources(place) == ["a"]
    assert pages.pictures(place) == ["0/0/0"]
    write(place, "b")


def test_a_run_goes_on_with_the_records_of_another(place):
    write(place, *"ab")
    write(place, *"cd", resumed=True)
    assert sources(place) == [*"abcd"]
    assert [run["chunks"] for run in pages.runs(place)] == [1, 1]
    assert pages.pictures(place) == ["0/0/0", "0/0/1", "1/0/0", "1/0/1"]


@pytest.mark.parametrize("torn", [b'add({"sour', b"\0" * 100, b"\n", b'add({"source":"x"}'])
def test_what_a_kill_has_torn_is_cut_off(place, torn):
    write(place, *"ab")
    with (place / "data/0.js").open("ab") as file:
        file.write(torn)
    (place / "data/1.js").write_bytes(b'add({"source":"never counted"});\n')
    write(place, "c", resumed=True)
    assert sources(place) == [*"abc"]


def test_a_page_of_another_version_is_not_gone_on_with(place):
    write(place, "a")
    for text in ("", "runs(", "runs(2, []);\n", 'runs(1, [{"chunks":"x"}]);\n', "é"):
        (place / "data/runs.js").write_text(text)
        with pytest.raises(UsageError, match="not written by this version"):
            write(place, "b", resumed=True)
    write(place, "b")
    assert sources(place) == ["b"]


def test_a_full_disk_leaves_whole_lines(place):
    page = PageFolder(place)
    page.begin()
    page.describe({"state": "running"})

    def fill():
        for number in range(500):
            if page.add({"source": str(number) * 100}):
                page.describe({"state": "running"})

    with small_disk(20_000), pytest.raises(OutputError, match="cannot write"):
        fill()
    page.close()
    assert 10 < len(sources(place)) < 500


def test_nothing_else_is_written_into_the_folder(place, tmp_path):
    require_apart(None, [place])
    require_apart(place, [None, tmp_path, tmp_path / "page2", place / "../x.json"])
    (tmp_path / "link").symlink_to(place)
    for path in (place, place / "x.json", place / "new/x.json", tmp_path / "link/x.json"):
        with pytest.raises(UsageError, match="holds nothing else"):
            require_apart(place, [path])
