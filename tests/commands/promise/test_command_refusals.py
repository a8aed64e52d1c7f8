"""What `detcli promise` refuses to deal or to check."""

import json
import re

import pytest
from json_lines import column_of, lines
from reviews import DEAL, answer, deck_of, write_labels
from saved_records import box, error, record

pytestmark = pytest.mark.slow


def test_a_folder_with_something_in_it_is_refused(promise):
    promise.review.mkdir()
    (promise.review / "mine.txt").write_text("mine")
    promise.deal(code=2, says="has something in it")
    assert (promise.review / "mine.txt").read_text() == "mine"


def test_changed_records_are_refused(promise, card, review):
    labels = answer(review, card.animals)
    promise.check(labels, "--records", "boxes.jsonl")
    fields = next(fields for fields in card.records if fields.get("detections"))
    fields["detections"][0]["score"] += 0.000001
    card.write("changed.jsonl")
    says = "has changed since the deal"
    records = ["--records", "changed.jsonl"]
    promise.check(records, code=2, says=says)
    promise("split", "review", "-o", "out", records, code=2, says=says)
    promise("verify", "review/promise.json", "changed.jsonl", code=2, says=says)


def test_records_that_are_gone_are_named(promise, review):
    deck = deck_of(review) | {"records": "/no/such/boxes.jsonl"}
    (review / "deck.json").write_text(json.dumps(deck))
    stderr = promise.check(code=2, says="/no/such/boxes.jsonl is gone").stderr
    assert "--records" in stderr


def test_a_changed_deal_is_refused(promise, review):
    names = (review / "deal.txt").read_text().splitlines(keepends=True)
    (review / "deal.txt").write_text("".join(names[1:] + names[:1]))
    promise.check("--records", "boxes.jsonl", code=2, says="was changed")


REFUSED = [
    (["--lost", "0%"], "not a share between"),
    (["--sure", "150%"], "not a share between"),
    (["--above", "some"], "neither all nor a number"),
    (["--unit", "site"], "is not a unit"),
    (["--unit", "burst:60s"], "no record says when"),
    (["--unit", "meta:site"], "has no site in meta"),
    (["--rounds", "9"], "not in the range"),
    (["--each"], "--each needs several classes"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED)
def test_options_that_make_no_sense_are_refused(promise, words, says):
    promise.deal(words, code=2, says=says)


def test_records_of_no_use_are_refused(promise, card):
    records = card.records

    def refused(changed_records, says):
        card.records = changed_records
        card.write()
        promise.deal(code=2, says=says)

    refused(records + [records[0]], "is in the records twice")
    refused([records[0] | {"model": "other"}] + records[1:], "several models made")
    refused([error("a.jpg")], "has no image with detections")
    refused([record("a.jpg", box(0.001))], "no box is of the class animal")
    refused([record("a.jpg", box(0.001, name="deer"))], "the records have deer; --force goes on")
    refused([record("a.jpg")], "the records have no boxes at all")
    low_score = record("a.jpg", box(0.149, name="animal"))
    refused([low_score], "the 0 of 1 images without a score cannot be told")
    high_scores = [fields for fields in records if is_high(fields)]
    refused(high_scores, "run predict with --conf 0.001")
    settings = {"conf": 0.25, "max_det": 300}
    refused([records[0] | {"settings": settings}] + records[1:], "scores in boxes.jsonl begin at")
    full = record("full.jpg", box(0.5), box(0.4), box(0.3))
    few = {"settings": {"conf": 0.001, "max_det": 3}}
    refused([full | few] + records, "as many boxes as --max-det allows")
    promise("deal", "-", DEAL[1:], "-o", "review", code=2, says="name a file")
    assert not promise.review.exists()


def is_high(fields):
    scores = column_of(fields.get("detections", []), "score")
    return not scores or min(scores) > 0.02


def test_a_folder_that_is_no_review_is_refused(promise):
    promise("check", "card", code=2, says="is not a review")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": 2}, "has version 2"),
        ({"plan": ["a"]}, "its plan is damaged"),
        ({"above": None}, "its above is damaged"),
        ({"seed": "7"}, "its seed is damaged"),
        ({"seed": 8}, "has changed since the deal"),
        ({"units": 1_000_000}, "its numbers do not follow from the records"),
        ({"failed": 0}, "its numbers do not follow from the records"),
        ({"units_below": 1}, "its numbers do not follow from the records"),
        ({"grid": [0.0001]}, "its numbers do not follow from the records"),
    ],
)
def test_a_changed_deck_is_refused(promise, review, change, says):
    deck = deck_of(review)
    (review / "deck.json").write_text(json.dumps(deck | change))
    promise.check("--records", "boxes.jsonl", code=2, says=says)
    (review / "deck.json").write_text("[]")
    promise.check(code=2, says="is not a deck of detcli promise")


def test_nothing_below_the_threshold_cannot_be_dealt(promise, card):
    for fields in card.records:
        if "detections" in fields:
            fields["detections"] = [box(0.5, name="animal"), box(0.001, name="animal")]
    card.write()
    stderr = promise.deal("--below", "0.4", code=2, says="no image has a score below").stderr
    assert "raise --below" in stderr
    words = ["deal"] + DEAL[:5] + ["--expect", "90%", "-o", "review"]
    stderr = promise(words, code=2, says="no image has a score below").stderr
    assert "lower --expect" in stderr


def test_labels_of_another_review_are_refused(promise, card, review):
    path = answer(review, card.animals)
    labels = []
    for fields in lines(path.read_text()):
        labels.append(fields | {"review": "0123456789abcdef"})
    write_labels(path, labels)
    promise.check(path, code=2, says="answers the review 0123456789abcdef")
    assert not (review / "labels.jsonl").exists()


def test_a_deck_that_was_edited_after_the_answers_is_refused(promise, card, review):
    script = (review / "data" / "deck.js").read_text()
    review_id = re.search(r'"review": ?"(\w+)"', script).group(1)
    path = answer(review, card.animals)
    labels = []
    for fields in lines(path.read_text()):
        labels.append(fields | {"review": review_id})
    write_labels(path, labels)
    promise.check(path)
    deck = deck_of(review)
    (review / "deck.json").write_text(json.dumps(deck | {"expect": 0.31}))
    promise.check(code=2, says="its deck.json was changed after the deal")


def test_labels_that_do_not_say_their_review_are_warned_of(promise, card, review):
    path = answer(review, card.animals)
    says = "labels without the name of a review, which the page writes into each"
    promise.check(path, "--records", "boxes.jsonl", says=says)
