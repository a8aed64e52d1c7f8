"""The passes in their order, and what they report."""

import colour_model
import convolution_model
import numpy as np
import onnx
import pytest
from convolution_model import CONVOLUTIONS, same_bytes
from onnx import TensorProto

from detcli.commands.convert import steps as module
from detcli.commands.convert.steps import ConversionOptions, Steps, serialised
from detcli.errors import ModelError, SourceError, UsageError
from detcli.geometry import Picture
from detcli.model.contract import Layout
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, bare_transposes
from detcli.model.recognise import recognise

PICTURE = Picture.whole(colour_model.picture(("red", 1, 1), ("blue", 5, 4)))
METADATA = {"names": "['red', 'green', 'blue']", "imgsz": "[64, 64]", "batch": "1", "stride": "8"}


def converted(model, pictures=(PICTURE,), **options):
    steps = Steps(model, "m.onnx", ConversionOptions(**options), lambda: pictures)
    steps.run()
    return steps


def contract_of(model):
    return recognise(infer_shapes(model), "m")


def entries(model):
    return {entry.key: entry.value for entry in model.metadata_props}


def weights(model):
    return {t.name: t.data_type for t in model.graph.initializer if t.name.endswith("_kernel")}


EVERYTHING = [
    {"cut": True},
    {"guard_transpose": True},
    {"half": True},
    {"half": True, "keep_io": True},
    {"int8": True},
    {"batch": "dynamic"},
    {"batch": 2},
    {"imgsz": 96},
    {"metadata": {"author": "me", "stride": ""}},
    {"end_to_end": True, "max_det": 20},
    {"half": True, "end_to_end": True, "batch": 3},
    {"int8": True, "cut": True, "guard_transpose": True, "batch": "dynamic"},
]


@pytest.mark.parametrize("tail", ["body", "transposed", "ultralytics", "authors"])
@pytest.mark.parametrize("options", EVERYTHING, ids="-".join)
def test_any_conversion_is_valid_and_twice_is_once(tail, options):
    size = None if "imgsz" in options else 64
    model = convolution_model.build(tail, size=size, metadata=METADATA)
    before = serialised(model)
    steps = converted(model, **options)
    assert serialised(model) == before
    onnx.checker.check_model(steps.model, full_check=True)
    contract_of(steps.model)
    again = converted(steps.model, **options)
    assert same_bytes(again.model, steps.model)
    assert [step.changed for step in again.done] == [False] * len(steps.done)


def test_a_model_that_needs_no_change_stays_byte_for_byte():
    model = convolution_model.build("body")
    steps = converted(model, cut=True, guard_transpose=True, batch=1)
    assert same_bytes(steps.model, model)
    assert [(step.name, step.changed) for step in steps.done] == [
        ("cut", False),
        ("batch", False),
        ("guard-transpose", False),
    ]


def test_cut_reports_what_it_drops():
    model = colour_model.build("ultralytics")
    [step] = converted(model, cut=True).done
    assert step.finding.endswith("after head dropped")
    assert step.nodes == len(colour_model.build("body").graph.node)


def test_a_selection_that_is_cut_off_does_not_limit_the_size():
    """Its top-k needs more anchors than a small picture has."""
    model = colour_model.build("authors", size=None, keep=16, metadata={"stride": "8"})
    with pytest.raises(ModelError, match=r"cannot take 24x24 pictures: .*TopK") as caught:
        converted(model, imgsz=24)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("op_type") == 1
    assert contract_of(converted(model, imgsz=24, cut=True).model).anchor_count == 9


def test_the_guard_follows_a_cut():
    model = colour_model.build("transposed")
    steps = converted(model, cut=True, guard_transpose=True)
    assert bare_transposes(steps.model.graph) == []
    assert contract_of(steps.model).layout is Layout.TRANSPOSED_BODY


def test_metadata_is_updated():
    steps = converted(
        convolution_model.build(size=None, batch=None, metadata=METADATA), imgsz=96, batch=4
    )
    assert entries(steps.model) == METADATA | {"imgsz": "[96, 96]", "batch": "4"}
    contract = contract_of(steps.model)
    assert (contract.input_size, contract.batch) == ((96, 96), 4)


def test_metadata_entries_are_not_added():
    steps = converted(convolution_model.build(size=None), imgsz=96, batch=4)
    assert entries(steps.model) == {}


def test_a_size_that_the_stride_does_not_divide_is_refused():
    with pytest.raises(UsageError, match="stride, 8"):
        converted(convolution_model.build(size=None, metadata=METADATA), imgsz=100)


def test_a_static_size_stays():
    model = convolution_model.build(metadata=METADATA)
    with pytest.raises(ModelError, match="only takes 64x64 pictures"):
        converted(model, imgsz=96)
    [step] = converted(model, imgsz=64).done
    assert (step.changed, step.finding) == (False, "64x64, was 64x64")


def test_names(tmp_path):
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    steps = converted(convolution_model.build(metadata=METADATA), names=tmp_path / "names.txt")
    assert contract_of(steps.model).names == ("one", "two", "three")
    assert contract_of(steps.model).names_origin == "the model's metadata"
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    with pytest.raises(UsageError, match="has 2 names, the model has 3"):
        converted(convolution_model.build(), names=tmp_path / "names.txt")


@pytest.mark.parametrize("tail", ["body", "authors"])
def test_half_leaves_the_decode_in_float32(tail):
    steps = converted(convolution_model.build(tail), half=True)
    assert set(weights(steps.model).values()) == {TensorProto.FLOAT16}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in infer_shapes(steps.model).graph.value_info
    }
    assert types["boxes"] == types["low"] == TensorProto.FLOAT
    assert types["layer2"] == TensorProto.FLOAT16
    assert "overflow" not in steps.done[0].finding
    assert "(calibrated on 1 picture)" in steps.done[0].finding


@pytest.mark.parametrize("scale", [1e6, 30000])
def test_half_keeps_float32_where_it_would_overflow(scale):
    """At 30000 this picture does not overflow, but another might."""
    steps = converted(convolution_model.build(scale=scale), half=True)
    kept = {name for name, dtype in weights(steps.model).items() if dtype == TensorProto.FLOAT}
    assert kept == {"layer3_kernel", "layer4_kernel", "cells_kernel"}
    assert "cells, layer3, layer4" in steps.done[0].finding


def test_int8_leaves_the_last_convolutions_in_float32():
    steps = converted(convolution_model.build(), int8=True, pictures=[PICTURE] * 2)
    names = {tensor.name for tensor in steps.model.graph.initializer}
    quantised = [name for name in CONVOLUTIONS if f"{name}_kernel_quantized" in names]
    assert quantised == ["layer1", "layer2"]
    assert steps.done[0].finding == "2 of 5 convolutions, calibrated on 2 pictures"


def test_int8_leaves_the_first_convolutions_in_float32_where_others_remain(monkeypatch):
    monkeypatch.setattr(module, "FLOAT_DEPTH", 1)
    steps = converted(convolution_model.build(), int8=True)
    names = {tensor.name for tensor in steps.model.graph.initializer}
    quantised = [name for name in CONVOLUTIONS if f"{name}_kernel_quantized" in names]
    assert quantised == ["layer3", "layer4"]


def test_int8_cuts_off_the_outlying_pictures():
    """One picture in ten sets no range: it would widen the steps of all others."""
    dark = Picture.whole(np.full((64, 64, 3), 51, np.uint8))
    bright = Picture.whole(np.full((64, 64, 3), 255, np.uint8))
    for pictures, most in (([dark] * 11 + [bright], 0.2), ([dark] * 10 + [bright] * 2, 1.0)):
        steps = converted(convolution_model.build(), int8=True, pictures=pictures)
        scale = GraphIndex(steps.model.graph).array("layer1_scale")
        np.testing.assert_allclose(scale, most / 255, rtol=0.01)


def test_a_network_without_convolutions_is_not_quantised():
    with pytest.raises(ModelError, match="no convolution"):
        converted(colour_model.build(), int8=True)


def test_without_pictures_there_are_no_ranges():
    with pytest.raises(SourceError, match="no picture"):
        converted(convolution_model.build(), int8=True, pictures=[])


def test_one_reduced_precision_is_not_converted_to_another():
    half = convolution_model.build(dtype=np.float16)
    with pytest.raises(ModelError, match="is in float16"):
        converted(half, int8=True)
    quantised = converted(convolution_model.build(), int8=True).model
    with pytest.raises(ModelError, match="is quantised"):
        converted(quantised, half=True)


def test_end_to_end_reports_its_shape():
    [step] = converted(colour_model.build("authors"), end_to_end=True, max_det=20).done
    assert step.finding == "ends in [1, 20, 6]"
    [step] = converted(colour_model.build(size=128), end_to_end=True, max_det=500).done
    assert step.finding == "ends in [1, 500, 6]"
    [step] = converted(colour_model.build(size=None, batch=None), end_to_end=True).done
    assert step.finding == "ends in [batch, detections, 6]"
