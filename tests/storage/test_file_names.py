"""Files that were probably meant by a name; `safe` is tested in test_folder_naming.py."""

from detcli.storage.file_names import MAX_COMPARED, did_you_mean, similar_file


def test_a_file_beside_it_that_resembles_it(tmp_path):
    (tmp_path / "street.jpg").touch()
    (tmp_path / "boxes.jsonl").touch()
    assert similar_file(tmp_path / "stret.jpg") == str(tmp_path / "street.jpg")
    assert similar_file(tmp_path / "Street.JPG") == str(tmp_path / "street.jpg")
    assert similar_file(tmp_path / "house.jpg") == ""


def test_a_name_without_a_folder_stays_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "street.jpg").touch()
    assert similar_file("stret.jpg") == "street.jpg"
    assert did_you_mean("stret.jpg") == "did you mean street.jpg? "


def test_folders_that_cannot_be_read_or_are_large_have_none(tmp_path):
    assert similar_file(tmp_path / "gone/a.jpg") == ""
    assert similar_file("a\0b.jpg") == ""
    assert did_you_mean(tmp_path / "gone/a.jpg") == ""
    for number in range(MAX_COMPARED + 1):
        (tmp_path / f"street{number}.jpg").touch()
    assert similar_file(tmp_path / "street1x.jpg") == ""
