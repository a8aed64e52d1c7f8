"""Answers of a second network, added to records."""

from contextlib import ExitStack, closing

import pytest
from json_lines import optional_column_of
from saved_records import box, record

from detcli.core.errors import CheckError, UsageError
from detcli.run.classified import Classified, crops_of


@pytest.fixture
def classify(tmp_path):
    """Write a CSV file, and add its answers to records."""
    with ExitStack() as databases:

        def add(text, *records):
            path = tmp_path / "species.csv"
            path.write_text(text)
            answers = databases.enter_context(closing(Classified(path)))
            for fields in records:
                answers.add(fields)
            return answers

        yield add


def classes_of(fields):
    return optional_column_of(fields["detections"], "classified")


def test_rows_name_a_source_and_the_number_of_a_box(classify):
    first = record("a.jpg", box(), box())
    second = record("site 7/b.jpg", box())
    text = "source,box,class,score\nsite 7/b.jpg,0,hare,0.5\na.jpg,1,fox,0.875\n"
    answers = classify(text, first, second)
    assert classes_of(first) == [None, "fox"]
    assert first["detections"][1]["classified_score"] == 0.875
    assert classes_of(second) == ["hare"]
    answers.require_fit()


def test_a_row_may_lack_a_score_and_have_other_columns(classify):
    fields = record("a.jpg", box())
    fields["detections"][0] |= {"classified": "old", "classified_score": 0.1}
    classify("remark,class,source,box\nodd,fox,a.jpg,0\n", fields)
    assert fields["detections"][0]["classified"] == "fox"
    assert "classified_score" not in fields["detections"][0]


def test_frames_of_a_video_are_told_apart(classify):
    first = record("a.mp4", box(), frame=0)
    second = record("a.mp4", box(), frame=1)
    third = record("a.mp4", box(), frame=2)
    text = "source,frame,box,class\na.mp4,2,0,fox\na.mp4,0.0,0,hare\n"  # as pandas may write 0
    classify(text, first, second, third).require_fit()
    assert classes_of(first) == ["hare"]
    assert classes_of(second) == [None]
    assert classes_of(third) == ["fox"]


def test_a_track_is_classified_in_all_its_frames(classify):
    tracked_box = box() | {"track_id": 7}
    first = record("a.mp4", tracked_box.copy(), box(), frame=0)
    second = record("a.mp4", tracked_box.copy(), box(), frame=1)
    other = record("b.mp4", tracked_box.copy(), frame=0)
    classify("source,track,class\na.mp4,7,fox\n", first, second, other).require_fit()
    assert classes_of(first) == ["fox", None]
    assert classes_of(second) == ["fox", None]
    assert classes_of(other) == [None]


SAVED = ["out/site7/a.jpg", "crops/cat/site7/a_0.jpg", "crops/dog/site7/a_1.jpg"]


def record_with_crops(folder="site7"):
    saved = [file.replace("site7", folder) for file in SAVED]
    cat = box(name="cat")
    dog = box(name="dog")
    return record(f"{folder}/a.jpg", cat, dog, saved=saved)


@pytest.mark.parametrize(
    "crop",
    [
        "crops/dog/site7/a_1.jpg",
        "./crops/dog/site7/a_1.jpg",
        "dog/site7/a_1.jpg",
        "a_1.jpg",
        "/home/me/crops/dog/site7/a_1.jpg",
        "C:\\me\\crops\\dog\\site7\\a_1.jpg",
    ],
)
def test_rows_name_crops_by_as_many_folders_as_they_like(classify, crop):
    fields = record_with_crops()
    classify(f"crop,class\n{crop},fox\n", fields).require_fit()
    assert classes_of(fields) == [None, "fox"]


def test_crops_of_images_of_one_name_are_told_apart_by_their_folders(classify):
    first, second = record_with_crops("site7"), record_with_crops("site8")
    classify("crop,class\nsite8/a_1.jpg,fox\nsite7/a_1.jpg,hare\n", first, second).require_fit()
    assert classes_of(first) == [None, "hare"]
    assert classes_of(second) == [None, "fox"]


def test_a_name_that_several_crops_have_is_refused(classify):
    with pytest.raises(UsageError, match="line 2: several crops are called a_1") as raised:
        classify("crop,class\na_1.jpg,fox\n", record_with_crops("site7"), record_with_crops("b"))
    assert "with their folders" in raised.value.hint


def test_other_saved_files_are_no_crops():
    fields = record_with_crops()
    assert crops_of(fields) == {0: SAVED[1], 1: SAVED[2]}
    fields["saved"] = ["out/a_0.jpg", "crops/cat/a_7.jpg", "crops/cat/a.jpg", "crops/dog/a_0.jpg"]
    assert crops_of(fields) == {}


def test_rows_that_fit_nothing_are_listed_and_counted(classify):
    lines = ["source,frame,track,box,crop,class", "a.jpg,,,0,,fox", "a.jpg,,,1,,fox"]
    lines += ["a.jpg,3,,0,,fox", "a.mp4,,4,,,fox", ",,,,crops/cat/b_0.jpg,fox"]
    answers = classify("\n".join(lines), record("a.jpg", box()))
    sentences = [sentence.partition("line ")[2] for sentence in answers.unused()]
    assert sentences == [
        "3 fits no detection: a.jpg, box 1",
        "4 fits no detection: a.jpg, frame 3, box 0",
        "5 fits no detection: a.mp4, track 4",
        "6 fits no detection: crops/cat/b_0.jpg",
    ]
    with pytest.raises(CheckError, match="4 of 5 rows in"):
        answers.require_fit()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("source,box,class\na.jpg,0,fox\nb.jpg,0,fox\na.jpg,00,fox\n", "2 and 4"),
        ("crop,class\ncat/a_0.jpg,fox\ncat/a_0.jpg,hare\n", "2 and 3"),
        ("source,track,class\na.mp4,1,fox\na.mp4,1,fox\n", "2 and 3"),
    ],
)
def test_two_rows_about_the_same_are_refused(classify, text, lines):
    with pytest.raises(UsageError, match=f"lines {lines} are about the same box"):
        classify(text)


def test_two_rows_that_turn_out_to_be_about_one_box_are_refused(classify):
    text = "source,box,crop,class\nsite7/a.jpg,1,,fox\n,,dog/site7/a_1.jpg,hare\n"
    with pytest.raises(UsageError, match="lines 2 and 3 are about the same box"):
        classify(text, record_with_crops())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the columns"),
        ("source,box\n", "has the columns source, box"),
        ("name,class\n", "has the columns name, class"),
        ("source;box;class\n", "has the columns source;box;class"),
        ("source,box,class\na.jpg,0\n", "line 2: it has more or fewer cells"),
        ("source,box,class\na.jpg,0,fox,1\n", "line 2: it has more or fewer cells"),
        ("source,box,class\na.jpg,0,\n", "line 2: it has no class"),
        ("source,box,class\n,0,fox\n", "names no crop, and no source"),
        ("source,box,class\na.jpg,,fox\n", "names no crop, and no source"),
        ("source,box,track,class\na.jpg,1,1,fox\n", "either a box or a track"),
        ("source,box,class\na.jpg,-1,fox\n", "box is '-1', not a whole number"),
        ("source,box,class\na.jpg,1.5,fox\n", "box is '1.5', not a whole number"),
        ("source,box,class\na.jpg,99999999999999999999,fox\n", "not a whole number"),
        ("source,frame,box,class\na.jpg,x,1,fox\n", "frame is 'x', not a whole number"),
        ("source,box,class,score\na.jpg,0,fox,much\n", "score is 'much', not a number from 0 to 1"),
        ("source,box,class,score\na.jpg,0,fox,nan\n", "score is 'nan'"),
        ("source,box,class,score\na.jpg,0,fox,93\n", "score is '93'"),
        ('source,box,class\na.jpg,0,"fox\n', "cannot be read"),
    ],
)
def test_other_tables_are_refused(classify, text, message):
    with pytest.raises(UsageError, match=message) as raised:
        classify(text)
    assert "crop" in raised.value.hint


def test_what_is_no_text_is_refused(tmp_path):
    for name, content in {
        "a": b"source,box,class\n\xff\xff\xff,0,x\n",
        "b": b"\x89PNG\r\n\0",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError):
            Classified(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be read"):
        Classified(tmp_path / "absent")
