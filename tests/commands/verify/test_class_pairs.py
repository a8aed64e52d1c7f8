"""Classes of two models are paired by name, wherever they stand in the two lists."""

import itertools

import numpy as np
import onnx
import pytest
from colour_model import build
from hypothesis import given
from hypothesis import strategies as st
from json_lines import column_of
from sample_records import detected

from detcli.commands.verify.class_pairs import pair_classes

NAMES = st.lists(st.sampled_from(["cat", "Cat ", "dog", "bird", "horse"]), max_size=6)


def seen_from_behind(names):
    """A colour model whose classes are in the order blue, green, red, with these names."""
    model = build()
    graph = model.graph
    number = next(number for number, node in enumerate(graph.node) if "scores" in node.input)
    graph.node[number].input[1] = "reversed"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 1, 0]), "order"))
    gather = onnx.helper.make_node("Gather", ["scores", "order"], ["reversed"], axis=1)
    graph.node.insert(number, gather)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {"names": str(dict(enumerate(names)))})
    return model


@pytest.fixture
def two_models(make_model, tmp_path):
    """The colour model, and one with its classes the other way round under these names."""

    def make(*names):
        path = tmp_path / "reversed.onnx"
        onnx.save(seen_from_behind(names), path)
        return make_model(), path

    return make


def test_models_agree_whose_classes_are_in_another_order(
    reports, two_models, compared_images, verify
):
    models = two_models("blue", "green", "red")
    report = reports(0, models, "--images", compared_images)
    assert report["agree"]
    assert report["detections"]["pairs"] > 0
    assert report["detections"]["missing"] == 0
    says = verify(models, "--images", compared_images).stderr
    assert "classes are compared by name, and 2 have different ids: 'blue' is 2 and 0" in says


def test_models_differ_whose_names_are_exchanged(reports, two_models, compared_images):
    report = reports(6, two_models("red", "green", "blue"), "--images", compared_images)
    image = report["detections"]["pictures"][0]
    assert column_of(image["missing"], "class_name") == ["red"]
    assert column_of(image["extra"], "class_name") == ["blue"]


def test_a_renamed_class_is_compared_by_its_id(reports, make_model, compared_images, verify):
    renamed = make_model("other.onnx", metadata={"names": "['crimson', 'green', 'blue']"})
    models = [make_model(), renamed]
    report = reports(0, models, "--images", compared_images)
    assert report["agree"]
    says = verify(models, "--images", compared_images).stderr
    assert "1 have different names: 0 is 'red' and 'crimson'" in says


def test_classes_of_one_side_are_named(two_models, compared_images, verify):
    models = two_models("blue", "lime", "red")
    assert "have different ids" in verify(models, "--images", compared_images).stderr
    models = two_models("blue", "red", "gold")
    says = verify(models, "--images", compared_images).stderr
    assert "1 class (gold) is only in the second model" in says
    assert "1 class (green) is only in the first model" in says


@pytest.mark.parametrize(
    ("first", "second", "ids"),
    [
        (("cat", "dog"), ("cat", "dog"), [0, 1]),
        (("cat", "dog"), ("dog", "cat"), [1, 0]),
        (("person", "car"), ("Car",), [1]),
        (("cat", "dog"), ("dog", "bird"), [1, 2]),
        (("cat", "cat"), ("cat", "cat"), [0, 1]),
        (("cat", "dog", "cat"), ("cat", "cat"), [0, 2]),
        (("cat",), ("cat", "cat"), [0, 1]),
        (("a", "b"), ("x", "y"), [0, 1]),
        ((), ("x",), [0]),
        (("x",), (), []),
    ],
)
def test_each_class_of_the_second_model_has_an_id_of_the_first(first, second, ids):
    assert pair_classes(first, second).ids.tolist() == ids


@given(first=NAMES, second=NAMES)
def test_no_two_classes_become_one_and_equal_names_meet(first, second):
    pairs = pair_classes(first, second)
    ids = pairs.ids.tolist()
    assert len(set(ids)) == len(second)
    assert pairs.names[: len(first)] == tuple(first)

    def plain(names):
        return [name.strip().lower() for name in names]

    first_names = plain(first)
    second_names = plain(second)
    for name in set(first_names) & set(second_names):
        pair_count = 0
        for index in ids:
            if index < len(first) and first_names[index] == name:
                pair_count += 1
        assert pair_count >= min(first_names.count(name), second_names.count(name))


def test_detections_keep_the_words_of_their_own_model():
    first, second = ("cat", "dog"), ("bird", "hound", "cat")
    pairs = pair_classes(first, second)
    rows = [(0, 0, 1, 1, 0.9, 0), (0, 0, 1, 1, 0.9, 1), (0, 0, 1, 1, 0.9, 2)]
    translated = pairs.with_first_ids(detected(rows, names=second))
    assert translated.class_id.tolist() == [2, 1, 0]
    names = column_of(translated.to_dict(), "class_name")
    assert names == ["bird", "hound", "cat"]


def test_orders_of_three_names_are_all_paired():
    names = ("red", "green", "blue")
    for order in itertools.permutations(names):
        ids = pair_classes(names, order).ids.tolist()
        assert len(ids) == 3
        for index, name in zip(ids, order, strict=True):
            assert names[index] == name
