"""What counts of the answers, whatever their order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reviews import label, write_labels

from detcli.commands.promise.labels import (
    LABELS,
    Answer,
    Answers,
    add_labels,
    read_labels,
    with_gone,
)
from detcli.core.errors import SourceError, UsageError


def test_undo_withdraws_the_latest_answer_of_that_reviewer_and_pass():
    lines = [
        label("a", 0, second=1),
        label("a", 1, second=2),
        label("a", 1, second=3, who="ben"),
        label("a", "undo", second=4),
        label("a", "undo", second=5, pass_=2),
    ]
    assert Answers(lines[:2]).of("a") is Answer.ANIMAL
    assert Answers(lines).of("a") is Answer.DOUBTFUL
    assert Answers([*lines, label("a", "undo", second=6)]).of("a") is Answer.ANIMAL
    assert Answers([label("a", 1), label("a", "undo", second=1)]).of("a") is None


def test_an_unsure_answer_is_doubtful_until_it_is_asked_again():
    unsure = label("a", None)
    assert Answers([unsure]).of("a") is Answer.DOUBTFUL
    assert Answers([unsure, label("a", 0, second=9)]).of("a") is Answer.NOTHING


def test_of_one_reviewer_the_later_pass_counts():
    lines = [label("a", 1, second=5), label("a", 0, second=9, pass_=2)]
    assert Answers(lines).of("a") is Answer.NOTHING
    assert Answers(lines).count_repeats(["a", "b"]) == (1, 1)
    assert Answers(lines[:1]).count_repeats(["a"]) == (0, 0)


def test_where_reviewers_disagree_a_third_pass_decides():
    lines = [label("a", 1), label("a", 0, who="ben"), label("b", 1), label("b", 1, who="ben")]
    answers = Answers(lines)
    assert answers.of("a") is Answer.DOUBTFUL
    assert answers.of("b") is Answer.ANIMAL
    assert answers.disagreements(["a", "b", "c"]) == ["a"]
    assert answers.reviewers == ["anna", "ben"]
    decided = Answers([*lines, label("a", 0, who="cleo", second=7, pass_=3)])
    assert decided.of("a") is Answer.NOTHING
    assert decided.disagreements(["a"]) == []


def test_what_is_gone_is_doubtful_whoever_answered():
    answers = Answers([label("a", 0), label("b", 0)])
    expected = {"a": Answer.NOTHING, "b": Answer.DOUBTFUL, "c": Answer.DOUBTFUL}
    assert with_gone(answers, ["a", "b", "c", "d"], ["b", "c"]) == expected


LINES = st.lists(
    st.builds(
        label,
        st.sampled_from("ab"),
        st.sampled_from([0, 1, None, "undo"]),
        who=st.sampled_from(["anna", "ben"]),
        second=st.integers(0, 3000),
        pass_=st.integers(1, 3),
    ),
    unique_by=lambda line: line["at"],
)


@given(LINES, st.randoms())
def test_the_order_of_lines_does_not_matter(lines, random):
    shuffled = list(lines)
    random.shuffle(shuffled)
    for source in "ab":
        assert Answers(lines).of(source) is Answers(shuffled).of(source)


def test_labels_are_added_once_however_often_they_are_saved(tmp_path):
    lines = [label("a", 1), label("a", "undo"), label("a", 1)]
    assert add_labels(tmp_path, lines[:1]) == 1
    assert add_labels(tmp_path, lines) == 2
    assert add_labels(tmp_path, lines) == 0
    assert Answers(read_labels(tmp_path / LABELS)).of("a") is Answer.ANIMAL


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "not an object"),
        (label("a", 2), "not 1, 0, null or undo"),
        (label("a", "1"), "not 1, 0, null or undo"),
        (label("a", 1) | {"who": 3}, "its who is no text"),
        (label("a", 1) | {"pass": 0}, "its pass is not a number"),
    ],
)
def test_a_line_that_is_no_label_is_named(tmp_path, fields, reason):
    write_labels(tmp_path / "l.jsonl", [label("a", 1), fields])
    with pytest.raises(UsageError, match=f"line 2 of .*{reason}"):
        read_labels(tmp_path / "l.jsonl")


def test_what_is_no_json_or_no_file_is_an_error(tmp_path):
    (tmp_path / "l.jsonl").write_text(json.dumps(label("a", 1))[:-5])
    with pytest.raises(UsageError, match="line 1"):
        read_labels(tmp_path / "l.jsonl")
    with pytest.raises(SourceError):
        read_labels(tmp_path / "none.jsonl")
