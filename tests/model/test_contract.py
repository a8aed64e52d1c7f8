"""Contract: the canvas for an image size, other names, the JSON form."""

import json
from dataclasses import asdict, replace

import pytest

from detcli.config.values import BoxFormat
from detcli.core.errors import UsageError
from detcli.model.contract import (
    UNKNOWN_CLASSES,
    Contract,
    Interpolation,
    Layout,
    Preprocessing,
    Resize,
    ScoreForm,
    class_ids,
)

STATIC = Contract(
    layout=Layout.END_TO_END,
    head="/model.23/Concat",
    anchors_first=False,
    box_format=BoxFormat.XYXY,
    class_count=2,
    anchor_count=84,
    input_name="images",
    input_dtype="float16",
    batch=1,
    input_size=(64, 96),
    default_size=(640, 640),
    stride=32,
    names=("cat", "dög"),
    names_origin="the model's metadata",
    warnings=("the metadata names 3 classes, the graph has 2",),
)
SQUARE = replace(STATIC, input_size=(64, 64))
DYNAMIC = replace(STATIC, input_size=None, anchor_count=None, batch=None, default_size=(320, 416))


@pytest.mark.parametrize(
    ("contract", "image_size", "canvas"),
    [
        (STATIC, None, (64, 96)),
        (SQUARE, None, (64, 64)),
        (SQUARE, 64, (64, 64)),
        (DYNAMIC, None, (320, 416)),
        (DYNAMIC, 32, (32, 32)),
        (DYNAMIC, 1280, (1280, 1280)),
        (replace(DYNAMIC, stride=8), 72, (72, 72)),
    ],
)
def test_canvas_prefers_the_requested_size_then_the_graphs_then_the_default(
    contract, image_size, canvas
):
    assert contract.input_shape(image_size) == canvas


@pytest.mark.parametrize("image_size", [64, 96, 640])
def test_a_static_graph_refuses_another_size_and_names_its_own(image_size):
    with pytest.raises(UsageError, match=f"imgsz {image_size}: .*96x64") as error:
        STATIC.input_shape(image_size)
    assert "leave imgsz out" in error.value.hint
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("image_size", "stride", "lower", "upper"),
    [(330, 32, 320, 352), (31, 32, 32, 64), (1, 32, 32, 64), (639, 64, 576, 640)],
)
def test_a_size_off_the_stride_is_refused_with_the_nearest_multiples(
    image_size, stride, lower, upper
):
    contract = replace(DYNAMIC, stride=stride)
    with pytest.raises(UsageError, match=f"imgsz {image_size} .* stride, {stride}$") as error:
        contract.input_shape(image_size)
    assert error.value.hint == f"use {lower} or {upper}"
    assert contract.input_shape(lower) == (lower, lower)
    assert contract.input_shape(upper) == (upper, upper)


def test_a_size_for_an_input_that_follows_the_image_names_what_can_be_passed():
    preprocessing = Preprocessing(resize=Resize.ROUND, multiple=32)
    contract = replace(DYNAMIC, preprocessing=preprocessing)
    with pytest.raises(UsageError, match=r"imgsz 640: .* follows the size") as error:
        contract.input_shape(640)
    assert "--preprocess shortest-edge=MIN:MAX,multiple=32 sets its edges" in error.value.hint
    plain = replace(DYNAMIC, preprocessing=replace(preprocessing, multiple=1))
    with pytest.raises(UsageError) as error:
        plain.input_shape(640)
    assert "--preprocess shortest-edge=MIN:MAX sets its edges" in error.value.hint


def test_names_are_replaced_together_with_their_origin():
    renamed = STATIC.with_names(("Katze", "Hund"), "names.txt")
    assert renamed == replace(STATIC, names=("Katze", "Hund"), names_origin="names.txt")
    assert STATIC.names == ("cat", "dög")


@pytest.mark.parametrize("names", [(), ("cat",), ("cat", "dog", "bird")])
def test_a_wrong_number_of_names_is_refused(names):
    with pytest.raises(UsageError, match=f"names.txt has {len(names)} names?, .* 2 classes"):
        STATIC.with_names(names, "names.txt")


@pytest.mark.parametrize("contract", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_a_json_round_trip_gives_the_same_contract(contract):
    by_edge = Preprocessing(Resize.SHORTEST_EDGE, Interpolation.BICUBIC, edges=(800, 1333))
    contract = replace(contract, preprocessing=by_edge, score_form=ScoreForm.LOGITS)
    read_back = Contract.from_json(json.loads(json.dumps(asdict(contract))))
    assert repr(read_back) == repr(contract)  # with its enumerations
    assert hash(read_back) == hash(contract)  # tuples all the way, no lists from JSON


def test_names_tell_how_many_classes_rows_have_that_do_not_show_it():
    rows = replace(STATIC, layout=Layout.ROWS, class_count=UNKNOWN_CLASSES, counts_classes=False)
    with_names = rows.with_names(("a", "b", "c"), "names.txt")
    assert with_names.class_count == 3
    assert with_names.names == ("a", "b", "c")
    assert with_names.names_origin == "names.txt"
    assert with_names.with_names(("a", "b"), "other.txt").class_count == 2
    with pytest.raises(UsageError, match="has 2 names, the model has 3 classes"):
        replace(with_names, counts_classes=True).with_names(("a", "b"), "other.txt")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("people", "person"),
        ("People", "person"),
        ("Car", "car"),
        ("bike", "bicycle"),
        ("phone", "cell phone"),
        ("AprilTag", "aruco"),
        ("cars", "car"),
        ("bicyle", "bicycle"),
        ("hat", ""),  # not cat
        ("sofa", ""),  # this model knows no couch
    ],
)
def test_a_class_is_suggested_by_meaning_or_not_at_all(text, suggestion):
    names = ("apple", "person", "bicycle", "cell phone", "car", "cat", "aruco")
    with pytest.raises(UsageError, match=f"no class '{text}'") as error:
        class_ids([text], names)
    expected = f"did you mean {suggestion}?" if suggestion else "its 7 classes are: apple,"
    assert error.value.hint.startswith(expected)
