"""The passes in their order, and what they report."""

import colour_model
import convolution_model
import numpy as np
import onnx
import pytest
from conversions import IMAGE, conversion
from convolution_model import CONVOLUTIONS, same_bytes
from onnx import TensorProto

from detcli.commands.convert import steps as module
from detcli.commands.convert.steps import Steps, serialised
from detcli.commands.convert.value_ranges import float_tensors, observe, tensor_of
from detcli.core.errors import ModelError, SourceError, UsageError
from detcli.data.geometry import Image
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.recognise import read_graph

METADATA = {"names": "['red', 'green', 'blue']", "imgsz": "[64, 64]", "batch": "1", "stride": "8"}


def converted(model, images=(IMAGE,), **options):
    steps = Steps(model, "m.onnx", conversion(**options), lambda: images)
    steps.run()
    return steps


def contract_of(model):
    return read_graph(infer_shapes(model), "m").contract


def entries(model):
    return {entry.key: entry.value for entry in model.metadata_props}


def weights(model):
    return {t.name: t.data_type for t in model.graph.initializer if t.name.endswith("_kernel")}


EVERYTHING = [
    ("ultralytics", {"cut": True}),
    ("transposed", {"guard_transpose": True}),
    ("authors", {"half": True}),
    ("transposed", {"half": True, "keep_io": True}),
    ("body", {"int8": True}),
    ("ultralytics", {"batch": "dynamic"}),
    ("authors", {"batch": 2}),
    ("ultralytics", {"imgsz": 96}),
    ("body", {"metadata": {"author": "me", "stride": ""}}),
    ("transposed", {"end_to_end": True, "max_det": 20}),
    ("authors", {"half": True, "end_to_end": True, "batch": 3}),
    ("transposed", {"int8": True, "cut": True, "guard_transpose": True, "batch": "dynamic"}),
]


@pytest.mark.parametrize(("tail", "options"), EVERYTHING, ids="-".join)
def test_any_conversion_is_valid_and_twice_is_once(tail, options):
    size = None if "imgsz" in options else 64
    model = convolution_model.build(tail, size=size, metadata=METADATA)
    before = serialised(model)
    steps = converted(model, **options)
    assert serialised(model) == before
    onnx.checker.check_model(steps.model, full_check=True)
    contract_of(steps.model)
    repeated = converted(steps.model, **options)
    assert same_bytes(repeated.model, steps.model)
    assert len(repeated.done) == len(steps.done)
    for step in repeated.done:
        assert step.changed is False


def test_what_a_step_reports():
    large = colour_model.build(size=128)
    for model, options, finding in (
        (colour_model.build("ultralytics"), {"cut": True}, "19 nodes after head dropped"),
        (convolution_model.build(), {"imgsz": 64}, "64x64, was 64x64"),
        (convolution_model.build(), {"int8": True}, "2 of 5 convolutions, calibrated on 1 image"),
        (large, {"end_to_end": True, "max_det": 500}, "ends in [1, 500, 6]"),
        (large, {"end_to_end": True}, "ends in [1, 300, 6]"),
        (colour_model.build(batch=None), {"end_to_end": True}, "ends in [batch, 192, 6]"),
    ):
        [step] = converted(model, **options).done
        assert step.finding == finding
        assert step.changed == ("imgsz" not in options)
    assert converted(model, cut=True).done[0].nodes == len(model.graph.node)


def test_a_selection_that_is_cut_off_does_not_limit_the_size():
    """Its top-k needs more anchors than a small image has."""
    model = colour_model.build("authors", size=None, keep=16, metadata={"stride": "8"})
    with pytest.raises(ModelError, match=r"cannot take 24x24 images: .*TopK") as caught:
        converted(model, imgsz=24)
    assert "\n" not in str(caught.value)
    assert "the shapes contradict each other at its TopK node" in str(caught.value)
    assert contract_of(converted(model, imgsz=24, cut=True).model).anchor_count == 9


def test_metadata_is_updated():
    steps = converted(
        convolution_model.build(size=None, batch=None, metadata=METADATA), imgsz=96, batch=4
    )
    assert entries(steps.model) == METADATA | {"imgsz": "[96, 96]", "batch": "4"}
    contract = contract_of(steps.model)
    assert contract.input_size == (96, 96)
    assert contract.batch == 4

    steps = converted(convolution_model.build(size=None), imgsz=96, batch=4)
    assert entries(steps.model) == {}  # none is added
    with pytest.raises(UsageError, match="stride, 8"):
        converted(convolution_model.build(size=None, metadata=METADATA), imgsz=100)


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("detcli.conf", "high", "--metadata detcli.conf is 'high', not a number from 0 to 1"),
        ("detcli.conf", "0.4,cat=0.3", "detcli.conf is '0.4,cat=0.3'"),
        (
            "detcli.nms",
            "0.7",
            "--metadata detcli.nms has no effect: the model's head gives one box",
        ),
        ("detcli.tile", "0", "not a size in pixels, as in 1024,crowd=10$"),
    ],
)
def test_recommendations_that_would_be_ignored_are_refused(key, text, why):
    model = convolution_model.build(metadata={"names": "['red', 'green', 'blue']"})
    with pytest.raises(UsageError, match=why):
        converted(model, metadata={key: text})
    assert entries(converted(model, metadata={key: ""}, batch=2).model).get(key) is None


def test_names_of_other_classes_are_refused(tmp_path):
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    with pytest.raises(UsageError, match="has 2 names, the model has 3"):
        converted(convolution_model.build(), names=tmp_path / "names.txt")


def test_half_leaves_the_decode_in_float32():
    steps = converted(convolution_model.build("authors"), half=True)
    assert set(weights(steps.model).values()) == {TensorProto.FLOAT16}
    types = GraphIndex(infer_shapes(steps.model).graph).types
    assert types["boxes"] == types["low"] == TensorProto.FLOAT
    assert types["layer2"] == TensorProto.FLOAT16
    assert "overflow" not in steps.done[0].finding
    assert "(calibrated on 1 image)" in steps.done[0].finding


@pytest.mark.parametrize("scale", [1e6, 30000])
def test_half_keeps_float32_where_it_would_overflow(scale):
    """At 30000 this image does not overflow, but another might."""
    steps = converted(convolution_model.build(scale=scale), half=True)
    float32_names = set()
    for name, dtype in weights(steps.model).items():
        if dtype == TensorProto.FLOAT:
            float32_names.add(name)
    assert float32_names == {"layer3_kernel", "layer4_kernel", "cells_kernel"}
    assert "cells, layer3, layer4" in steps.done[0].finding


def quantised(steps):
    names = {tensor.name for tensor in steps.model.graph.initializer}
    return [name for name in CONVOLUTIONS if f"{name}_kernel_quantized" in names]


def test_int8_leaves_the_first_and_the_last_convolutions_in_float32(monkeypatch):
    assert quantised(converted(convolution_model.build(), int8=True)) == ["layer1", "layer2"]
    monkeypatch.setattr(module, "FLOAT_DEPTH", 1)  # the first ones only where others remain
    assert quantised(converted(convolution_model.build(), int8=True)) == ["layer3", "layer4"]


def test_int8_cuts_off_the_outlying_images():
    """One image in ten sets no range: it would widen the steps of all others."""
    dark = Image.whole(np.full((64, 64, 3), 51, np.uint8))
    bright = Image.whole(np.full((64, 64, 3), 255, np.uint8))
    for images, largest in (([dark] * 11 + [bright], 0.2), ([dark] * 10 + [bright] * 2, 1.0)):
        steps = converted(convolution_model.build(), int8=True, images=images)
        scale = GraphIndex(steps.model.graph).array("layer1_scale")
        np.testing.assert_allclose(scale, largest / 255, rtol=0.01)


def test_precisions_that_are_refused():
    with pytest.raises(SourceError, match="no image"):
        converted(convolution_model.build(), int8=True, images=[])
    half = convolution_model.build(dtype=np.float16)
    with pytest.raises(ModelError, match="is in float16"):
        converted(half, int8=True)
    int8_model = converted(convolution_model.build(), int8=True).model
    with pytest.raises(ModelError, match="is quantised"):
        converted(int8_model, half=True)


RED = Image.whole(colour_model.image(("red", 0, 0)))


@pytest.fixture
def scaled_convolutions():
    return infer_shapes(convolution_model.build(scale=10))


def uniform_batches(values):
    """One batch per value: one image filled with it."""
    return [np.full((1, 3, 64, 64), value, np.float32) for value in values]


def test_ranges_are_those_of_all_batches(scaled_convolutions):
    batches = uniform_batches([0.25, 0.75, 0.5])
    ranges = observe(scaled_convolutions, ["images", "layer1", "layer3", "scores"], batches, "m")[0]
    expected = [(0.25, 0.75), (0.25, 0.75), (2.5, 7.5), (0.25, 0.75)]
    np.testing.assert_allclose(list(ranges.values()), expected, rtol=1e-5)


def test_a_share_of_the_images_may_go_beyond_a_range(scaled_convolutions):
    batches = uniform_batches(np.arange(11) / 10)
    ranges = observe(scaled_convolutions, ["images", "layer3"], batches, "m", outlier_share=0.1)[0]
    np.testing.assert_allclose(ranges["images"], (0.1, 0.9), rtol=1e-5)
    np.testing.assert_allclose(ranges["layer3"], (1, 9), rtol=1e-5)
    few, seen_count = observe(scaled_convolutions, ["images"], batches[3:6], "m", outlier_share=0.1)
    assert seen_count == 3
    np.testing.assert_allclose(few["images"], (0.3, 0.5), rtol=1e-5)
    assert observe(scaled_convolutions, ["images"], [], "m") == ({}, 0)


def test_infinite_values_are_in_no_way_averaged(scaled_convolutions):
    before = scaled_convolutions.SerializeToString(deterministic=True)
    batches = uniform_batches([1, np.inf, np.inf])
    assert observe(scaled_convolutions, ["images"], batches, "m") == ({"images": (1, np.inf)}, 3)
    assert scaled_convolutions.SerializeToString(deterministic=True) == before


def test_float_tensors_are_those_with_ranges(scaled_convolutions):
    names = float_tensors(scaled_convolutions)
    assert {"layer1", "cells", "scores", "boxes", "head"} <= set(names)
    assert len(names) == len(scaled_convolutions.graph.node)
    body = onnx.helper.make_node("Shape", ["cells"], ["size"])
    scaled_convolutions.graph.node.append(body)
    assert float_tensors(infer_shapes(scaled_convolutions)) == names


def test_an_image_is_at_each_place_of_a_batch():
    for batch, image_count in ((1, 1), (3, 3), (None, 1)):
        model = colour_model.build(batch=batch, dtype=np.float16)
        tensor = tensor_of(RED, contract_of(model))
        assert tensor.shape == (image_count, 3, 64, 64)
        assert tensor.dtype == np.float16
        assert tensor[:, :, 0, 0].tolist() == [[1, 0, 0]] * image_count
