"""What an experiment with a model shows, and what it leaves undecided."""

import numpy as np
import onnx
import pytest
import seeker_model
from seeker_model import IMAGENET, LESS_MEAN, LEVELS, SIGNED, UNIT

from detcli.commands.inspect.consistency import SelfConsistency
from detcli.commands.inspect.interpretations import LEAST
from detcli.commands.inspect.report import TrialReport
from detcli.commands.inspect.trial import Measurement, Trial, is_ahead
from detcli.errors import ModelError, UsageError
from detcli.model.zoo import find
from detcli.opencv import cv2
from detcli.settings import Settings
from detcli.source.sources import Sources


@pytest.fixture
def pictures(tmp_path, random):
    """A folder of pictures with something to find."""
    seeker_model.write_pictures(tmp_path / "pictures", random)
    return tmp_path / "pictures"


@pytest.fixture
def seeker(tmp_path):
    def make(*arguments, **options):
        onnx.save_model(seeker_model.build(*arguments, **options), tmp_path / "seeker.onnx")
        return tmp_path / "seeker.onnx"

    return make


def tried(model, *names, parts=None, **settings) -> TrialReport:
    with Sources([str(name) for name in names]) as sources:
        evidence = SelfConsistency.of(sources)
    return Trial.plan(find(str(model)), "cpu", Settings(**settings), parts).run(evidence)


def found(report):
    return {one.part: one.found for one in report.parts}


@pytest.mark.parametrize(
    ("normal", "bgr", "values"),
    [
        (UNIT, False, "0 to 1"),
        (UNIT, True, "0 to 1"),
        (LEVELS, True, "0 to 255"),
        (IMAGENET, False, "ImageNet's mean and std"),
        (SIGNED, True, "-1 to 1"),
        (LESS_MEAN, True, "0 to 255 less ImageNet's mean"),
    ],
)
def test_the_truth_is_found(seeker, pictures, normal, bgr, values):
    report = tried(seeker(normal, bgr=bgr), pictures)
    channels = "bgr" if bgr else "rgb"
    # Of square pictures all ways of resizing are one.
    assert found(report) == {"values": values, "channels": channels, "resize": None}
    assert (report.preprocess is None) == (values == "0 to 1" and not bgr)
    assert report.box_format is None
    assert report.unknown == ()


def test_what_it_says_is_the_best_way(seeker, pictures):
    model = seeker(IMAGENET, bgr=True)
    report = tried(model, pictures)
    again = tried(model, pictures, preprocess=report.preprocess)
    assert [one.part for one in again.parts] == ["resize"]  # the user said the others
    assert again.candidates[0].rank == max(one.rank for one in report.candidates)
    confirmed = tried(model, pictures, preprocess=report.preprocess, parts=["values", "channels"])
    assert [one.confirms for one in confirmed.parts] == [True, True]
    assert {one.settled_by for one in confirmed.parts} == {"--preprocess"}


def test_what_the_user_says_is_said_again(seeker, pictures):
    """Else the words that are printed would take it back."""
    model = seeker(IMAGENET, bgr=True)
    report = tried(model, pictures, preprocess="stretch,pad=0", box_format="xyxy")
    assert report.preprocess.startswith("stretch,pad=0,scale=")
    assert report.box_format == "xyxy"
    again = tried(model, pictures, preprocess=report.preprocess, parts=["values"])
    assert again.parts[0].confirms
    forced = tried(model, pictures, preprocess="corner,scale=1,rgb", parts=["values", "channels"])
    assert forced.preprocess.startswith("corner,linear,bgr,scale=0.0039")


def test_a_later_round_keeps_what_the_file_says_of_what_stays_undecided(seeker, pictures):
    for path in pictures.iterdir():
        cv2.imwrite(str(path), np.full((128, 128, 3), 90, np.uint8))
    report = tried(seeker(), pictures, preprocess="bgr", parts=["channels", "resize"])
    assert [one.found for one in report.parts] == [None, None]
    assert all(",bgr," in one.preprocess for one in report.candidates[2:])


@pytest.mark.parametrize("hidden", ["xyxy", "cxcywh"])
def test_the_format_of_boxes_is_found(seeker, pictures, hidden):
    model = seeker(LEVELS, hidden=hidden)
    report = tried(model, pictures)
    assert found(report)["boxes"] == report.box_format == hidden
    assert found(report)["values"] == "0 to 255"
    given = tried(model, pictures, box_format=hidden)
    assert "boxes" not in found(given)
    assert given.candidates[0].box_format == hidden


def test_a_format_that_the_graph_shows_is_confirmed_on_request(seeker, pictures):
    (boxes,) = tried(seeker(), pictures, parts=["boxes"]).parts
    assert (boxes.found, boxes.settled_by, boxes.confirms) == ("xyxy", "the file", True)


def test_few_pictures_decide_nothing(seeker, pictures):
    model = seeker(IMAGENET, bgr=True)
    names = sorted(pictures.iterdir())
    assert set(found(tried(model, *names[: LEAST - 1])).values()) == {None}
    assert found(tried(model, *names))["values"] is not None


def test_pictures_without_objects_decide_nothing(seeker, pictures):
    for path in pictures.iterdir():
        cv2.imwrite(str(path), np.full((128, 128, 3), 90, np.uint8))
    report = tried(seeker(IMAGENET, bgr=True), pictures)
    assert set(found(report).values()) == {None}
    assert {one.margin for one in report.parts} == {0}
    assert report.preprocess is None


def test_what_the_file_says_is_not_tried(seeker, pictures, tmp_path):
    model = onnx.load(seeker())
    onnx.helper.set_model_props(model, {"detcli.preprocess": "stretch,linear,rgb,scale=1"})
    onnx.save_model(model, tmp_path / "settled.onnx")
    report = tried(tmp_path / "settled.onnx", pictures)
    assert report.parts == report.candidates == ()


def test_another_kind_of_model_is_refused(tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        classifier (float[1, 3, 8, 8] images) => (float[1, 192] scores) {
            scores = Flatten(images)
        }
    """)
    onnx.save_model(model, tmp_path / "classifier.onnx")
    with pytest.raises(ModelError, match="not a detector"):
        Trial.plan(find(str(tmp_path / "classifier.onnx")), "cpu")


def test_values_of_whole_numbers_are_not_tried(seeker, tmp_path):
    model = onnx.load(seeker())
    (image,) = model.graph.input
    for node in model.graph.node:
        node.input[:] = ["floats" if name == image.name else name for name in node.input]
    cast = onnx.helper.make_node("Cast", [image.name], ["floats"], to=onnx.TensorProto.FLOAT)
    model.graph.node.insert(0, cast)
    image.type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save_model(model, tmp_path / "levels.onnx")
    located = find(str(tmp_path / "levels.onnx"))
    assert "values" not in Trial.plan(located, "cpu").parts
    with pytest.raises(UsageError, match="--parts values: this graph takes whole numbers"):
        Trial.plan(located, "cpu", parts=["values"])
    with pytest.raises(UsageError, match="--preprocess mean=1:2:3: this graph takes whole numbers"):
        Trial.plan(located, "cpu", Settings(preprocess="mean=1:2:3"))


def test_settings_that_do_not_suit_are_refused(seeker):
    with pytest.raises(UsageError, match="unknown device"):
        Trial.plan(find(str(seeker())), "gpu")
    with pytest.raises(UsageError, match="is unknown"):
        Trial.plan(find(str(seeker())), "cpu", Settings(preprocess="squeeze"))


def test_each_picture_of_each_way_is_counted(seeker, pictures):
    with Sources([str(pictures)]) as sources:
        evidence = SelfConsistency.of(sources)
    plan, steps = Trial.plan(find(str(seeker())), "cpu"), []
    plan.run(evidence, lambda: steps.append(1))
    assert len(steps) == plan.count * len(evidence.pictures)


def measurement(*scores):
    return Measurement(float(np.mean(scores)), np.array(scores, float), 1.0)


def test_being_ahead_is_more_than_chance():
    low = measurement(0, 0, 0, 0, 0)
    assert is_ahead(measurement(1, 1, 1, 1, 1), low)
    assert not is_ahead(low, low)
    assert not is_ahead(low, measurement(1, 1, 1, 1, 1))
    assert not is_ahead(measurement(5, 0, 0, 0, 0), low)  # one picture
    assert not is_ahead(measurement(1, 1, 1, 1), measurement(0, 0, 0, 0))  # too few
    assert is_ahead(
        measurement(*[1.0, 1.2] * 20), measurement(*[0.0] * 40)
    )  # more than in the table


def test_chance_is_rarely_taken_for_truth(random):
    """Of candidates that are equally good, one in a hundred is called the better."""
    wrong = 0
    for _ in range(2000):
        count = int(random.integers(LEAST, 17))
        wrong += is_ahead(
            measurement(*random.normal(size=count)), measurement(*random.normal(size=count))
        )
    assert 5 < wrong < 40
