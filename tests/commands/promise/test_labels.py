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
    answers_to_units,
    read_labels,
    read_labels_of_review,
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
    assert Answers(lines[:2]).to_unit("a") is Answer.DOUBTFUL
    assert Answers(lines).to_unit("a") is Answer.DOUBTFUL
    undone_twice = Answers(lines + [label("a", "undo", second=6), label("a", 1, second=7)])
    assert undone_twice.to_unit("a") is Answer.ANIMAL
    assert Answers([label("a", 1), label("a", "undo", second=1)]).to_unit("a") is None


def test_an_unsure_answer_is_doubtful_until_it_is_asked_again():
    unsure = label("a", None)
    assert Answers([unsure]).to_unit("a") is Answer.DOUBTFUL
    assert Answers([unsure, label("a", 0, second=9)]).to_unit("a") is Answer.NOTHING


def test_one_reviewer_who_answers_a_repeat_differently_leaves_a_doubt():
    lines = [label("a", 1, second=5), label("a", 0, second=9, pass_=2)]
    answers = Answers(lines)
    assert answers.to_unit("a") is Answer.DOUBTFUL
    assert answers.disagreements(["a"]) == ["a"]
    assert answers.count_repeats(["a", "b"]) == (1, 1)
    assert Answers(lines[:1]).count_repeats(["a"]) == (0, 0)


def test_two_people_of_one_name_who_contradict_leave_a_doubt():
    for first, second in ((1, 0), (0, 1)):
        answers = Answers([label("a", first), label("a", second, second=9)])
        assert answers.to_unit("a") is Answer.DOUBTFUL
        assert answers.disagreements(["a"]) == ["a"]


def test_a_clock_that_was_set_back_undoes_no_correction():
    lines = [label("a", 0, second=9), label("a", "undo", second=2), label("a", 1, second=1)]
    assert Answers(lines).to_unit("a") is Answer.ANIMAL


def test_an_unsure_third_pass_ends_a_dispute_and_stays_doubtful():
    lines = [label("a", 1), label("a", 0, who="ben"), label("a", None, pass_=3)]
    answers = Answers(lines)
    assert answers.to_unit("a") is Answer.DOUBTFUL
    assert answers.disagreements(["a"]) == []


def test_where_reviewers_disagree_a_third_pass_decides():
    lines = [label("a", 1), label("a", 0, who="ben"), label("b", 1), label("b", 1, who="ben")]
    answers = Answers(lines)
    assert answers.to_unit("a") is Answer.DOUBTFUL
    assert answers.to_unit("b") is Answer.ANIMAL
    assert answers.disagreements(["a", "b", "c"]) == ["a"]
    assert answers.reviewers == ["anna", "ben"]
    decided = Answers(lines + [label("a", 0, who="cleo", second=7, pass_=3)])
    assert decided.to_unit("a") is Answer.NOTHING
    assert decided.disagreements(["a"]) == []


@pytest.mark.parametrize("agreed", [0, 1])
def test_a_third_pass_overrides_no_answers_that_agree(agreed):
    early = [label("a", agreed), label("a", agreed, who="ben"), label("a", agreed, pass_=2)]
    answers = Answers(early + [label("a", 1 - agreed, who="cleo", pass_=3)])
    assert answers.to_unit("a") is Answer.DOUBTFUL
    assert answers.disagreements(["a"]) == []  # one more look decides nothing
    confirmed = Answers(early + [label("a", agreed, who="cleo", pass_=3)])
    assert confirmed.to_unit("a") is Answers(early).to_unit("a")


def test_a_third_pass_alone_is_no_answer():
    answers = Answers([label("a", 0, pass_=3)])
    assert answers.to_unit("a") is None
    assert answers.disagreements(["a"]) == []


def test_what_is_gone_is_doubtful_whoever_answered():
    answers = Answers([label("a", 0), label("b", 0)])
    expected = {"a": Answer.NOTHING, "b": Answer.DOUBTFUL, "c": Answer.DOUBTFUL}
    assert answers_to_units(answers, ["a", "b", "c", "d"], ["b", "c"]) == expected


REVIEWERS_LINES = st.lists(
    st.builds(
        label,
        st.sampled_from("ab"),
        st.sampled_from([0, 1, None, "undo"]),
        second=st.integers(0, 3000),
        pass_=st.integers(1, 3),
    )
)


@given(REVIEWERS_LINES, REVIEWERS_LINES)
def test_the_order_of_reviewers_does_not_matter(lines_of_anna, lines_of_ben):
    lines_of_ben = [fields | {"who": "ben"} for fields in lines_of_ben]
    for source in "ab":
        anna_first = Answers(lines_of_anna + lines_of_ben).to_unit(source)
        assert anna_first is Answers(lines_of_ben + lines_of_anna).to_unit(source)


def test_labels_are_added_once_however_often_they_are_saved(tmp_path):
    lines = [label("a", 1), label("a", "undo"), label("a", 1)]
    assert add_labels(tmp_path, lines[:1]) == 1
    assert add_labels(tmp_path, lines) == 2
    assert add_labels(tmp_path, lines) == 0
    assert Answers(read_labels(tmp_path / LABELS)).to_unit("a") is Answer.ANIMAL


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "not an object"),
        (label("a", 2), "not 1, 0, null or undo"),
        (label("a", "1"), "not 1, 0, null or undo"),
        (label("a", 1) | {"who": 3}, "its who is not text"),
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


def test_labels_of_another_review_are_refused(tmp_path):
    path = tmp_path / LABELS
    labels = [label("a", 0) | {"review": "1f0c"}, label("b", 1) | {"review": "22ab"}]
    write_labels(path, labels)
    with pytest.raises(UsageError, match="answers the review 22ab") as raised:
        read_labels_of_review(path, "1f0c")
    assert "its deck.json was changed" in raised.value.hint


def test_labels_that_do_not_say_their_review_are_taken(tmp_path):
    path = tmp_path / LABELS
    labels = [label("a", 0) | {"review": "1f0c"}, label("b", 1)]
    write_labels(path, labels)
    assert read_labels_of_review(path, "1f0c") == labels


def test_a_review_that_is_no_text_is_no_label(tmp_path):
    path = tmp_path / LABELS
    write_labels(path, [label("a", 0) | {"review": 7}])
    with pytest.raises(UsageError, match="its review is not text"):
        read_labels_of_review(path, "7")
