"""What deserves attention is reported with its fix, and nothing else is."""

import re
from dataclasses import replace

import colour_model
import numpy as np
import onnxruntime
import pytest
from convolution_model import behind_a_convolution
from onnx import helper, numpy_helper

from detcli.commands.inspect import advice
from detcli.commands.inspect.advice import (
    advise_on_detector,
    advise_on_graph,
    newest_ir,
    newest_opset,
)
from detcli.commands.inspect.detector import describe
from detcli.model.editing import infer_shapes
from detcli.model.external_data import ExternalFile
from detcli.model.graph import GraphIndex, parameters
from detcli.model.recognise import read_graph


def by_code(findings):
    return {finding.code: finding for finding in findings}


def on_detector(model):
    model = infer_shapes(model)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    reading = read_graph(model, "colours")
    cut = describe(model, reading, None).cut
    return by_code(advise_on_detector(reading.contract, metadata, cut))


def on_graph(model, external=()):
    weights = parameters(GraphIndex(model.graph))
    findings = list(advise_on_graph(model, external, weights))
    for finding in findings:
        assert finding.fix
    return by_code(findings)


WEIGHT = np.ones((3, 3, 1, 1), np.float32)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({}, None, ""),
        ({"tail": "transposed", "size": None}, None, ""),
        ({"stride": None}, None, ""),  # it matters for dynamic sizes alone
        ({"stride": None, "size": None}, "assumed-stride", "32 is assumed.*stride=32"),
        ({"detcli.conf": "high"}, "metadata-ignored", "detcli.conf is 'high', not a number from 0"),
        ({"detcli.nms": "2"}, "metadata-ignored", "detcli.nms is '2', not a number above 0 and at"),
        ({"detcli.nms": "0.5"}, "metadata-ignored", "detcli.nms.*its head gives one box for each"),
        ({"names": None}, "names-missing", "it names none of its 3 classes.*--names FILE"),
        ({"names": "{0: "}, "names-missing", "cannot be read.*--names FILE"),
        ({"names": "['r']"}, "names-fewer", "names 1 class, fewer than the 3.*--names FILE"),
        (
            {"names": str(list("rgbk"))},
            "names-more",
            "names 4 classes, more than the 3.*--names FILE",
        ),
        ({"tail": "ultralytics"}, "top-k-cap", "at most 5 detections.*detcli convert --cut"),
        ({"tail": "authors"}, "top-k-cap", "at most 5 detections.*detcli convert --cut"),
        ({"tail": "one-to-many"}, None, ""),
    ],
)
def test_what_a_detector_promises(changes, code, says):
    properties = {"tail": "body", "size": 64, "names": str(list("rgb")), "stride": "8"} | changes
    tail, size = properties.pop("tail"), properties.pop("size")
    metadata = {key: value for key, value in properties.items() if value is not None}
    findings = on_detector(colour_model.build(tail, size=size, metadata=metadata, keep=5))
    assert list(findings) == ([code] if code else [])
    for entry in findings.values():
        assert re.search(says, f"{entry.message} {entry.fix}")


def test_a_detector_of_one_class_that_it_does_not_name():
    reading = read_graph(infer_shapes(colour_model.build("body")), "colours")
    contract = replace(reading.contract, class_count=1)
    entries = by_code(advise_on_detector(contract, {}, None))
    assert entries["names-missing"].message == "it does not name its class"


@pytest.mark.parametrize("tail", ["body", "one-to-many", "ultralytics", "authors"])
def test_a_sound_graph_needs_no_advice(tail):
    assert on_graph(colour_model.build(tail)) == {}


def test_a_transpose_that_feeds_the_output():
    model = colour_model.build("transposed")
    assert "rows feeds an output" in on_graph(model)["bare-transpose"].message
    model.graph.node[-1].name = "/last"
    [(code, entry)] = on_graph(model).items()
    assert code == "bare-transpose"
    assert entry.fix == "detcli convert --guard-transpose"
    assert "the Transpose /last feeds" in entry.message


def test_several_transposes_are_one_advice():
    model = colour_model.build("transposed")
    first_transpose = model.graph.node[-1]
    second_transpose = model.graph.node.add()
    second_transpose.CopyFrom(first_transpose)
    second_transpose.name = "/second"
    second_transpose.output[0] = "second_rows"
    second_output = model.graph.output.add()
    second_output.CopyFrom(model.graph.output[0])
    second_output.name = "second_rows"
    advice = list(advise_on_graph(model, (), []))
    assert len(advice) == 1
    assert advice[0].message.startswith("2 Transposes such as rows feed outputs of the graph")


def test_versions_that_the_runtime_does_not_load():
    model = colour_model.build()
    model.opset_import[0].version = 999
    model.ir_version = 999
    findings = on_graph(model)
    newest = newest_opset(999)
    assert (
        findings["opset-too-new"].message == f"opset 999: this ONNX Runtime supports up to {newest}"
    )
    assert f"opset {newest} or lower" in findings["opset-too-new"].fix
    assert findings["ir-too-new"].message.startswith("file format (IR) 999")
    model.opset_import[0].version = 6
    assert "opset-too-old" in on_graph(model)


def loads(opset, ir):
    model = colour_model.build()
    model.opset_import[0].version = opset
    model.ir_version = ir
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # noqa: BLE001 - ONNX Runtime has many of its own
        return False
    return True


def test_the_newest_version_loads_and_the_next_does_not(monkeypatch):
    opset, ir = newest_opset(1 << 40), newest_ir(1 << 40)
    assert opset >= 17
    assert ir >= 8
    is_loaded = {(opset, 8): True, (17, ir): True, (opset + 1, 8): False, (17, ir + 1): False}
    for (opset_of_model, ir_of_model), expected in is_loaded.items():
        assert loads(opset_of_model, ir_of_model) is expected
    for highest in (-5, 1, 8):  # it loads, or is too old
        assert newest_opset(highest) == newest_ir(highest) == highest
    tried_opsets = []  # the search is short
    monkeypatch.setattr(
        advice, "_is_loaded", lambda _, opset: tried_opsets.append(opset) or opset <= 26
    )
    assert newest_opset(27) == newest_opset(10**12) == 26
    assert len(tried_opsets) < 60


@pytest.mark.parametrize(
    ("value", "dtype"), [(np.nan, np.float32), (np.inf, np.float16), (-np.inf, np.float32)]
)
def test_a_weight_that_is_not_finite(value, dtype):
    weight = WEIGHT.astype(dtype)
    assert "weights-not-finite" not in on_graph(behind_a_convolution(weight))
    weight[1, 2] = value
    findings = on_graph(behind_a_convolution(weight))
    assert (
        "1 weights hold NaN or infinity, such as weight" in findings["weights-not-finite"].message
    )


def test_other_findings_in_a_graph():
    findings = on_graph(colour_model.build(), (ExternalFile("weights.bin", 8, "0" * 64),))
    assert "weights are in weights.bin" in findings["external-data"].message
    assert on_graph(behind_a_convolution(WEIGHT)) == {}

    model = colour_model.build()
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert on_graph(model).keys() == {"sparse-weights"}

    model = colour_model.build()
    model.graph.node[0].op_type = "NoSuchOperator"
    [(code, entry)] = on_graph(model).items()
    assert code == "invalid"
    assert "NoSuchOperator" in entry.message
    assert "\n" not in entry.message
