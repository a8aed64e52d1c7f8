"""`detcli promise`, typed: deal, check and split."""

import json
import os
import re
import shutil

import cv2
import number_video
import numpy as np
import pytest
from folders import names_in
from json_lines import column_of, lines, records_by_source, records_with
from reviews import DEAL, answer, dealt, deck_of, label, looked_at, write_labels
from saved_records import box, record

from detcli.commands.promise.images import MAX_IMAGES

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("linked_images")
def test_a_review_from_the_card_to_the_folders(promise, card):
    stderr = promise.deal().stderr
    assert "1,000 images (20 failed: always to be looked at)" in stderr
    assert "chance that three rounds suffice" in stderr
    assert "--above 400 would take about" in stderr
    assert "detcli promise check review LABELS" in stderr
    promise.check(code=3, says="nothing is promised before the round ends")
    labels = answer(promise.review, card.animals)
    checked = promise.check(labels)
    checked_lines = checked.stdout.splitlines()
    first_line = checked_lines[0]
    last_line = checked_lines[-1]
    assert float(first_line.removeprefix("--conf ").partition(":")[0]) == promise.promise()["t"]
    assert "of animal images are lost" in first_line
    assert "95% sure" in first_line
    assert "of 1,000 images need no eyes" in first_line
    assert last_line.startswith("for these records and this model only; as sure as the reviewers: ")
    assert "animals were seen in 20 of 20 best-scoring units" in last_line
    promise("verify", "review/promise.json", "boxes.jsonl", says="it holds: --conf")

    threshold = promise.promise()["t"]
    promise("split", "review", "-o", "lists", "--how", "list", says="for eyes")
    eyes = (card.folder / "lists/eyes.txt").read_text().splitlines()
    no_eyes = (card.folder / "lists/no-eyes.txt").read_text().splitlines()
    assert sorted(eyes + no_eyes) == sorted(column_of(card.records, "source"))
    seen_below = {name for name in looked_at(promise.review, 1) if card.animals[name]}
    for fields in card.records:
        scores = column_of(fields.get("detections", []), "score")
        is_above = max(scores, default=0) >= threshold
        needs_eyes = "error" in fields or is_above or fields["source"] in seen_below
        assert (fields["source"] in eyes) == needs_eyes
    lost = sum(card.animals[name] for name in no_eyes)
    assert lost <= 0.1 * sum(card.animals.values())


@pytest.mark.usefixtures("removable_images")
def test_split_links_and_is_taken_back(promise, card, review):
    card.write("card.jsonl")
    promise.check(answer(review, card.animals), "--records", "boxes.jsonl")
    for fields in card.records:
        if "error" in fields:
            (card.folder / fields["source"]).write_text("torn")
    promise("split", "review", "-o", "sorted", "--records", "boxes.jsonl")
    linked = list((card.folder / "sorted").rglob("*.jpg"))
    assert len(linked) == 1000
    for path in linked:
        assert path.stat().st_nlink > 1
    completed = promise.invoke("sort", "-o", "sorted", "--undo", cwd=card.folder)
    assert completed.returncode == 0
    assert list((card.folder / "sorted").iterdir()) == []


@pytest.mark.usefixtures("linked_images")
def test_split_says_what_it_does_not_find(promise, card, review):
    promise.check(answer(review, card.animals), "--records", "boxes.jsonl")
    words = ["split", "review", "-o", "sorted", "--records", "boxes.jsonl"]
    promise(words, code=3, says="20 images not put into")


@pytest.mark.usefixtures("linked_images")
def test_split_says_which_names_no_list_can_hold(promise, card):
    failed = records_with(card.records, "error")[0]
    failed["source"] = "-:1"  # an image of standard input, which is gone
    card.write()
    promise.deal()
    promise.check(answer(promise.review, card.animals))
    words = ["split", "review", "-o", "lists", "--how", "list"]
    stderr = promise(words, code=3, says="1 image not put into").stderr
    assert "-:1: no list can hold this name" in stderr
    assert "leave out --how list" in stderr


def test_split_needs_a_promise(promise, review):
    promise("split", "review", "-o", "sorted", code=2, says="after a complete round")
    assert review.exists()


def test_split_refuses_a_promise_that_its_labels_do_not_lead_to(promise, card, review):
    promise.check(answer(review, card.animals), "--records", "boxes.jsonl")
    words = ["split", "review", "-o", "lists", "--how", "list", "--records", "boxes.jsonl"]
    edited = promise.promise() | {"t": 0.9}
    (review / "promise.json").write_text(json.dumps(edited))
    promise(words, code=2, says="does not follow from the labels, the deck and the records")
    assert not (card.folder / "lists").exists()


def test_an_incomplete_check_takes_an_earlier_promise_away(promise, card, review):
    promise.check(answer(review, card.animals), "--records", "boxes.jsonl")
    write_labels(card.folder / "undo.jsonl", [label(dealt(review)[0], "undo", second=3000)])
    promise.check("undo.jsonl", "--records", "boxes.jsonl", code=3)
    assert not (review / "promise.json").exists()


def test_records_without_the_failed_inputs_are_other_records(promise, card, review):
    promise.check(answer(review, card.animals), "--records", "boxes.jsonl")
    card.records = records_with(card.records, "detections")
    card.write("fewer.jsonl")
    promise.check("--records", "fewer.jsonl", code=2, says="has changed since the deal")


def test_answers_to_what_was_not_dealt_are_counted(promise, card, review):
    labels = lines(answer(review, card.animals).read_text())
    write_labels(card.folder / "more.jsonl", labels + [label("strange.jpg", 1)])
    says = "the labels answer 1 image that this review did not deal, such as strange.jpg"
    promise.check("more.jsonl", "--records", "boxes.jsonl", says=says)


@pytest.mark.usefixtures("linked_images")
def test_a_link_to_an_empty_folder_gets_the_review(promise, card):
    (card.folder / "empty").mkdir()
    promise.review.symlink_to("empty")
    promise.deal()
    assert (card.folder / "empty/index.html").is_file()


def copies_by_source(review):
    """The entry of each unit in images.jsonl."""
    return records_by_source(lines((review / "images.jsonl").read_text()))


@pytest.mark.usefixtures("linked_images")
def test_a_repeat_that_marks_drop_is_no_score_and_no_box(promise, card):
    name = "card/site1/00004.jpg"
    stone = box(0.99, name="animal") | {"repeated": 1}
    for fields in card.records:
        if fields["source"] == name:
            fields["detections"] = [stone, box(0.5, name="animal", column=1)]
    card.write()
    promise.deal()
    assert name not in deck_of(promise.review)["known"]  # 20 others have better scores
    (image,) = copies_by_source(promise.review)[name]["images"]
    assert len(image["boxes"]) == 1


@pytest.mark.usefixtures("linked_images")
def test_a_class_of_another_spelling_is_said(promise, card):
    card.records[0] = record(card.records[0]["source"], box(0.5, name="Animal"))
    card.write()
    promise.deal(says="the records have the class Animal, too")


def test_the_folder_says_what_was_dealt(review, card):
    deck = deck_of(review)
    assert deck["units"] == 980
    assert deck["failed"] == 20
    assert deck["lost"] == [0.1]
    assert deck["plan"][1] == deck["plan"][0] // 2 + 1
    assert deck["grid"][-1] <= deck["below"]
    assert len(dealt(review)) == sum(deck["plan"])
    copies = lines((review / "images.jsonl").read_text())
    assert len(copies) == len(looked_at(review, 3))
    assert set(names_in(review)) >= {"index.html", "images", "deck.json"}
    for copy in copies:
        for image in copy["images"]:
            assert (review / image["file"]).is_file()
            for left, top, right, bottom in image["boxes"]:
                assert 0 <= left < right <= 1
                assert 0 <= top < bottom <= 1
    assert set(card.animals) >= set(column_of(copies, "source"))


@pytest.mark.usefixtures("removable_images")
def test_images_are_small_copies_without_metadata(promise, card):
    name = "card/site1/00004.jpg"
    large = np.full((2000, 3000, 3), 90, np.uint8)
    for fields in card.records:
        if fields["source"] == name:
            fields.update(width=3000, height=2000)
            fields["detections"] = [box(0.99, name="animal") | {"x2": 1500, "y2": 500}]
    card.write()
    (card.folder / name).unlink()
    cv2.imwrite(str(card.folder / name), large)
    promise.deal()
    (image,) = copies_by_source(promise.review)[name]["images"]
    assert cv2.imread(str(promise.review / image["file"])).shape == (853, 1280, 3)
    assert image["boxes"] == [[0.0, 0.0, 0.5, 0.25]]


def test_nothing_is_said_before_a_round_ends(promise, card, review):
    labels = lines(answer(review, card.animals).read_text())
    write_labels(card.folder / "part.jsonl", labels[:-1])
    process = promise.check("part.jsonl", "--records", "boxes.jsonl", code=3)
    assert f"{len(labels) - 1} of {len(labels)} looked at in round 1" in process.stderr
    assert process.stdout == ""
    assert not (review / "promise.json").exists()
    write_labels(card.folder / "rest.jsonl", labels[-1:])
    promise.check("rest.jsonl", "--records", "boxes.jsonl", says="need no eyes")


def test_the_order_of_labels_undo_and_who_answers_change_nothing(promise, card, review):
    labels = lines(answer(review, card.animals).read_text())
    promise.check("labels-anna.jsonl", "--records", "boxes.jsonl")
    expected = promise.promise()
    detour = []
    for number, fields in enumerate(labels[:50]):
        mistaken_label = label(fields["source"], 1 - fields["animal"], second=number)
        detour += [mistaken_label | {"at": "2026-11-27T00:00:00Z"}]
        detour += [mistaken_label | {"animal": "undo", "at": "2026-11-27T00:00:01Z"}]
    (review / "labels.jsonl").unlink()
    write_labels(review / "labels-anna.jsonl", detour + labels)
    promise.check("--records", "boxes.jsonl")
    assert promise.promise() == expected

    (review / "labels.jsonl").unlink()
    (review / "labels-anna.jsonl").unlink()
    half = len(labels) // 2
    write_labels(review / "labels-anna.jsonl", labels[:half])
    write_labels(review / "labels-ben.jsonl", [fields | {"who": "ben"} for fields in labels[half:]])
    promise.check("--records", "boxes.jsonl")
    assert promise.promise() == expected | {"who": ["anna", "ben"]}


def test_reviewers_who_disagree_are_asked_a_third_time(promise, card, review):
    labels = lines(answer(review, card.animals).read_text())
    below = dealt(review)[0]
    second_opinion = label(below, 1 - int(card.animals[below]), who="ben")
    write_labels(card.folder / "ben.jsonl", [second_opinion])
    stdout = promise.check("labels-anna.jsonl", "ben.jsonl", "--records", "boxes.jsonl").stdout
    assert "1 image unsure, disputed or gone" in stdout
    assert "decide them in review/disputed/index.html" in stdout
    assert below in promise.promise()["doubtful_below"]
    assert (review / "disputed/index.html").exists()
    decision = label(below, int(card.animals[below]), who="cleo", pass_=3)
    write_labels(card.folder / "cleo.jsonl", [decision])
    assert "disputed" not in promise.check("cleo.jsonl", "--records", "boxes.jsonl").stdout
    assert labels


def test_a_file_of_labels_that_is_not_there_is_a_wrong_word(promise, review):
    promise.check("none.jsonl", code=2, says="there is no file none.jsonl")
    assert review.exists()


def test_repeats_and_known_animals_say_how_sure_the_reviewer_is(promise, card, review):
    labels = lines(answer(review, card.animals).read_text())
    deck = deck_of(review)
    for number, name in enumerate(deck["repeat"][:10]):
        animal = int(card.animals[name])
        if number < 2:
            animal = 1 - animal
        labels.append(label(name, animal, second=3000 + number, pass_=2))
    for fields in labels:
        if fields["source"] in deck["known"][:5]:
            fields["animal"] = 0
    write_labels(card.folder / "labels-anna.jsonl", labels)
    process = promise.check("labels-anna.jsonl", "--records", "boxes.jsonl")
    assert "2 of 10 repeats were answered differently" in process.stdout
    assert "animals were seen in 15 of 20 best-scoring units" in process.stdout
    assert "animals were seen in only 15 of 20 best-scoring units" in process.stderr
    assert "nothing shows that animals are overlooked" in process.stderr
    plain = promise.promise()
    promise.invoke(
        "promise", "check", "review", "--correct", "--records", "boxes.jsonl", cwd=card.folder
    )
    corrected = promise.promise()
    assert 0.4 < corrected["seen_share"] < 0.75
    for row, corrected_row in zip(plain["rows"], corrected["rows"], strict=True):
        assert corrected_row["A_up"] >= row["A_up"] / 0.75


def test_a_round_without_a_promise_leads_to_the_next(promise, card, review):
    """All animals that are dealt from below the threshold in the first round are called so."""
    deck = deck_of(review)
    first = dealt(review)[: deck["plan"][0]]
    animals = card.animals | dict.fromkeys(first[:60], True)
    labels = answer(review, animals)
    process = promise.check(labels, "--records", "boxes.jsonl", code=6)
    assert "round 1: no promise: below" in process.stderr
    assert f"go on with round 2 ({deck['plan'][1]:,} more)" in process.stderr
    assert promise.promise()["t"] is None
    promise("split", "review", "-o", "sorted", code=6, says="promises nothing")
    promise("verify", "review/promise.json", "boxes.jsonl", code=6, says="promises nothing")
    write_labels(card.folder / "more.jsonl", [label(dealt(review)[deck["plan"][0]], 0)])
    promise.check("more.jsonl", "--records", "boxes.jsonl", code=3, says="in round 2")
    labels = answer(review, animals, rounds=3)
    process = promise.check(labels, "--records", "boxes.jsonl", code=6)
    assert "would have been promised below" in process.stderr
    assert "--lost 10%," in process.stderr


def test_a_promise_that_later_answers_refute_is_withdrawn(promise, card, review):
    promise.check(answer(review, card.animals), "--records", "boxes.jsonl")
    shutil.copy(review / "promise.json", card.folder / "before.json")
    plan = deck_of(review)["plan"]
    later = dealt(review)[plan[0] : sum(plan[:2])]
    animals = card.animals | dict.fromkeys(later, True)
    labels = answer(review, animals, rounds=2)
    process = promise.check(labels, "--records", "boxes.jsonl", code=6)
    assert "round 1 promised --conf" in process.stdout
    assert "withdrawn" in process.stdout
    assert promise.promise()["t"] is None
    stored = json.loads((card.folder / "before.json").read_text())
    forged = stored | {"animals_below": sorted(set(stored["animals_below"]) | set(later))}
    (card.folder / "forged.json").write_text(json.dumps(forged))
    promise("verify", "forged.json", "boxes.jsonl", code=6, says="does not hold")


@pytest.mark.usefixtures("linked_images")
def test_two_losses_share_the_doubt_and_the_smaller_is_promised_first(promise, card):
    promise.deal("--lost", "30%")
    deck = deck_of(promise.review)
    assert deck["lost"] == [0.1, 0.3]
    first = dealt(promise.review)[: deck["plan"][0]]
    answers = card.animals | dict.fromkeys(first[:20], True)
    promise.check(answer(promise.review, answers))
    fields = promise.promise()
    assert fields["lost"] == 0.3
    assert fields["error"] == pytest.approx(0.05 / 2 / 2)
    promise("verify", "review/promise.json", "boxes.jsonl", says="it holds")


@pytest.mark.usefixtures("linked_images")
def test_a_sample_from_above_is_enough(promise, card):
    stderr = promise.deal("--above", "100").stderr
    assert "--above 400 would take" not in stderr
    promise.check(answer(promise.review, card.animals), says="need no eyes")
    above = promise.promise()["above"]
    assert above["looked_at"] == 100
    assert above["animals"] * above["units"] / 100 * 0.6 < above["at_least"]
    assert above["at_least"] < above["animals"] * above["units"] / 100
    promise("verify", "review/promise.json", "boxes.jsonl", says="it holds")
    assert "above" in stderr


def test_without_any_animal_the_number_of_images_is_bounded(promise, card, review):
    nothing = dict.fromkeys(card.animals, False)
    stderr = promise.check(answer(review, nothing), "--records", "boxes.jsonl", code=6).stderr
    assert "no animal was seen: at most" in stderr
    assert "of 1,000 images have one, 95% sure" in stderr


def looked_at_above(review):
    """The names of the units above the threshold that the first round looks at."""
    below = set(dealt(review))
    return [name for name in looked_at(review, 1) if name not in below]


def test_too_few_animals_leave_no_share(promise, card, review):
    above = looked_at_above(review)
    few = dict.fromkeys(card.animals, False) | dict.fromkeys(above[:5], True)
    labels = answer(review, few)
    says = "5 animals in all: one lost is 20%, more than "
    promise.check(labels, "--records", "boxes.jsonl", code=6, says=says)


@pytest.mark.usefixtures("linked_images")
def test_all_below_looked_at_needs_no_bound(promise, card):
    promise.deal("--misses", "1000", "--force")
    stdout = promise.check(answer(promise.review, card.animals)).stdout
    assert "100% sure, as everything below was looked at" in stdout
    stdout = promise.check("--correct").stdout
    assert "100% sure" not in stdout
    promise.check()
    stored = promise.promise()
    (row,) = [row for row in stored["rows"] if row["t"] == stored["t"]]
    assert row["M"] == row["m"]
    assert row["A_up"] == row["k"]
    shortened = {"shortened": dealt(promise.review)[:1]}
    (promise.review / "deck.json").write_text(json.dumps(deck_of(promise.review) | shortened))
    stdout = promise.check().stdout
    assert "100% sure" not in stdout
    assert "of 1 image, only 24 images are shown" in stdout


@pytest.mark.usefixtures("removable_images")
def test_an_image_that_is_gone_counts_as_lost(promise, card, dealt_review):
    names_of_lost_images = dealt(dealt_review)[:2]
    (card.folder / names_of_lost_images[0]).unlink()
    (card.folder / names_of_lost_images[1]).write_bytes(b"torn")
    promise.deal(says="2 images not found or changed since predict")
    deck = deck_of(promise.review)
    assert sorted(deck["gone"]) == sorted(names_of_lost_images)
    promise.check(answer(promise.review, card.animals))
    assert sorted(promise.promise()["doubtful_below"]) == sorted(names_of_lost_images)


@pytest.mark.usefixtures("removable_images")
def test_without_any_image_nothing_is_dealt(promise, card):
    shutil.rmtree(card.folder / "card")
    promise.deal(code=3, says="was found as predict read it")
    assert not promise.review.exists()


@pytest.mark.usefixtures("removable_images")
def test_labels_above_are_kept_if_their_images_did_not_change(promise, card, review):
    labels = answer(review, card.animals)
    promise.check(labels, "--records", "boxes.jsonl")
    names = looked_at_above(review)
    (card.folder / names[0]).unlink()
    cv2.imwrite(str(card.folder / names[0]), np.full((40, 400, 3), 9, np.uint8))
    words = ["deal"] + DEAL[:-2] + ["--seed", "8", "-o", "again", "--keep-labels", "review"]
    says = f"{len(names) - 1} images already answered in review: the page does not ask about them"
    promise(words, says=says)
    labels_again = lines((card.folder / "again/labels.jsonl").read_text())
    sources_of_labels = set(column_of(labels_again, "source"))
    assert sources_of_labels == set(names[1:])
    assert not sources_of_labels & set(dealt(card.folder / "again"))


@pytest.mark.usefixtures("linked_images")
def test_labels_of_another_class_or_unit_are_not_kept(promise, review):
    deck = deck_of(review)
    words = ["deal"] + DEAL + ["-o", "again", "--keep-labels", "review"]
    for change, says in (
        ({"classes": ["fox"]}, "looked for fox"),
        ({"unit": "folder"}, "units of"),
    ):
        (review / "deck.json").write_text(json.dumps(deck | change))
        promise(words, code=2, says=says)


@pytest.mark.usefixtures("linked_images")
def test_each_class_has_a_review_of_its_own(promise, card):
    for number, fields in enumerate(card.records):
        if fields.get("detections"):
            name = ["deer", "fox"][number % 2]
            fields["detections"] = [box(fields["detections"][0]["score"], name=name)]
    card.write()
    words = ["--classes", "deer,fox", "--lost", "20%", "--expect", "15%", "--misses", "2", "--each"]
    promise("deal", "boxes.jsonl", words, "-o", "review", "--seed", "7")
    for name, number in (("deer", 0), ("fox", 1)):
        deck = deck_of(promise.review / name)
        assert deck["classes"] == [name]
        assert deck["sure"] == pytest.approx(0.975)
        animals = {}
        for position, fields in enumerate(card.records):
            is_of_class = position % 2 == number
            animals[fields["source"]] = is_of_class and card.animals.get(fields["source"], False)
        labels = answer(promise.review / name, animals)
        promise("check", f"review/{name}", labels, says="need no eyes")
    stdout = promise.check().stdout
    assert "deer: --conf" in stdout
    assert "fox: --conf" in stdout
    assert "decides: --conf" in stdout
    promise("split", "review", "-o", "out", code=2, says="has a review for each class")
    promise.check("labels.jsonl", code=2, says="labels are of one of the reviews")


def test_what_is_not_worth_it_is_said_before_the_first_look(promise):
    stderr = promise("deal", DEAL[:3], "--lost", "1%", "-o", "review", code=6).stderr
    assert "not worth it: a loss of 1% takes" in stderr
    assert "--lost 2% takes" in stderr
    assert "--expect is 5% where it is not given" in stderr
    assert "--expect 30% takes looks at all of" in stderr
    assert "bursts of 3 images (--unit burst:60s) take" in stderr
    stderr = promise("deal", DEAL[:3], "--lost", "10%", "-o", "review", code=6).stderr
    assert re.search(r"--expect 30% takes about [\d,]+ looks of [345]\d\d below", stderr)
    stderr = promise.deal("--misses", "30", code=6, says="not worth it").stderr
    assert "--expect" not in stderr
    assert not promise.review.exists()


@pytest.mark.usefixtures("linked_images")
def test_bursts_and_videos_show_their_images_in_order(promise, card):
    """A burst of three in each folder, and a video of thirty frames."""
    records = []
    animals = {}
    some_image = next(iter(card.animals))
    for number in range(600):
        site, position = divmod(number, 3)
        boxes = []
        if site % 4 == 0:
            boxes = [box(0.6 + number / 10_000, name="animal")]
        if site % 4 == 1:
            boxes = [box(0.002, name="animal")]
        time = f"2026-05-01T{site // 60:02}:{site % 60:02}:{2 - position:02}"
        records.append(record(f"b{site}/{number}.jpg", *boxes, taken=time))
        path = card.folder / f"b{site}/{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        os.link(card.folder / some_image, path)
        animals[f"b{site}/{site * 3}.jpg"] = site % 4 == 0
    writer = number_video.open_writer(card.folder / "clip.avi", (400, 40), code="MJPG")
    for frame in range(30):
        writer.write(np.full((40, 400, 3), 8 * frame, np.uint8))
        frame_record = record("clip.avi", box(frame / 40 + 0.01, name="animal"), frame=frame)
        records.append(frame_record)
    writer.release()
    animals["clip.avi"] = True
    card.records = records
    card.write()
    says = f"of 1 burst, only {MAX_IMAGES} images are shown"
    promise.deal("--unit", "burst:5s", "--misses", "1", says=says)
    copies = copies_by_source(promise.review)
    assert set(copies) <= set(animals)
    assert len(copies["b0/0.jpg"]["images"]) == 3
    assert len(copies["clip.avi"]["images"]) == MAX_IMAGES
    shades = []
    for image in copies["clip.avi"]["images"]:
        shades.append(int(cv2.imread(str(promise.review / image["file"])).mean()))
    assert shades == sorted(shades)
    assert len(set(shades)) == MAX_IMAGES
    stdout = promise.check(answer(promise.review, animals)).stdout
    assert "of animal bursts are lost" in stdout
    assert says in stdout
    assert promise.promise()["shortened"] == ["clip.avi"]
    deck = deck_of(promise.review)
    assert deck["shortened"] == ["clip.avi"]
    promise("split", "review", "-o", "lists", "--how", "list")
    eyes = (card.folder / "lists/eyes.txt").read_text().splitlines()
    assert {"b0/0.jpg", "b0/1.jpg", "b0/2.jpg", "clip.avi"} <= set(eyes)


@pytest.mark.usefixtures("linked_images")
def test_results_of_megadetector_are_records(promise, card):
    images = []
    for fields in card.records:
        entry = {"file": fields["source"], "width": 400, "height": 40, "failure": "torn"}
        if "detections" in fields:
            del entry["failure"]
            entry["detections"] = []
            for score in column_of(fields["detections"], "score"):
                detection = {"category": "1", "conf": score, "bbox": [0.0, 0.0, 0.1, 1.0]}
                entry["detections"].append(detection)
        else:
            entry["detections"] = None
        images.append(entry)
    content = {"info": {"detector": "md"}, "detection_categories": {"1": "animal"}}
    (card.folder / "md.json").write_text(json.dumps(content | {"images": images}))
    promise("deal", "md.json", DEAL[1:], "-o", "review")
    promise.check(answer(promise.review, card.animals), says="need no eyes")
    promise("verify", "review/promise.json", "md.json", says="it holds")


def test_what_is_lost_is_counted_by_folder_also_without_a_promise(promise, card, review):
    first = dealt(review)[: deck_of(review)["plan"][0]]
    animals = card.animals | dict.fromkeys(first[:60], True)
    process = promise.check(answer(review, animals), "--records", "boxes.jsonl", code=6)
    assert process.stdout.startswith("lost among those looked at, by folder and without a bound: ")
    assert "card/site1 " in process.stdout
