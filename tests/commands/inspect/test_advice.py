"""What deserves attention is reported with its fix, and nothing else is."""

import colour_model
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from detcli.commands.inspect import advice
from detcli.commands.inspect.advice import (
    advise_on_detector,
    advise_on_graph,
    newest_ir,
    newest_opset,
)
from detcli.commands.inspect.examine import describe
from detcli.model.editing import infer_shapes
from detcli.model.file import ExternalFile
from detcli.model.graph import GraphIndex, parameters
from detcli.model.recognise import read_graph

NAMES = {"names": "['red', 'green', 'blue']", "stride": "8"}


def on_detector(*arguments, metadata=NAMES, **options):
    model = infer_shapes(colour_model.build(*arguments, metadata=metadata, **options))
    reading = read_graph(model, "colours")
    cut = describe(model, reading, None).cut
    return {found.code: found for found in advise_on_detector(reading.contract, metadata, cut)}


def on_graph(model, external=()):
    weights = parameters(GraphIndex(model.graph))
    found = list(advise_on_graph(model, external, weights))
    assert all(entry.fix for entry in found)
    return {entry.code: entry for entry in found}


def with_weight(array, *, listed=False):
    """A detector after a convolution with this weight."""
    model = colour_model.build()
    for node in model.graph.node:
        node.input[:] = ["mixed" if name == "images" else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Conv", ["images", "weight"], ["mixed"]))
    tensor = numpy_helper.from_array(array, "weight")
    model.graph.initializer.append(tensor)
    if listed:
        value = helper.make_tensor_value_info("weight", tensor.data_type, tensor.dims)
        model.graph.input.append(value)
    return model


WEIGHT = np.ones((3, 3, 1, 1), np.float32)


@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize("tail", ["body", "transposed"])
def test_a_complete_detector_needs_no_advice(tail, size):
    assert on_detector(tail, size=size) == {}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("detcli.conf", "high", "is 'high', not a number from 0 to 1"),
        ("detcli.nms", "2", "is '2', not a number above 0 and at most 1"),
        ("detcli.nms", "0.5", "its head gives one box for each object"),
    ],
)
def test_recommendations_that_are_ignored(key, value, says):
    found = on_detector(metadata={**NAMES, key: value})
    assert list(found) == ["metadata-ignored"]
    assert key in found["metadata-ignored"].message
    assert says in found["metadata-ignored"].message


@pytest.mark.parametrize(
    ("names", "code", "says"),
    [
        (None, "names-missing", "it names none of its 3 classes"),
        ("{0: ", "names-missing", "cannot be read"),
        ("['red']", "names-fewer", "names 1 classes, fewer than the 3"),
        ("['r', 'g', 'b', 'k']", "names-more", "names 4 classes, more than the 3"),
    ],
)
def test_names_that_do_not_fit(names, code, says):
    metadata = {"stride": "8"} | ({"names": names} if names else {})
    [(found, entry)] = on_detector(metadata=metadata).items()
    assert found == code
    assert says in entry.message
    assert "--names FILE" in entry.fix


@pytest.mark.parametrize("tail", ["ultralytics", "authors"])
def test_the_cap_of_an_end_to_end_graph(tail):
    [(code, entry)] = on_detector(tail, keep=5).items()
    assert code == "top-k-cap"
    assert "at most 5 detections" in entry.message
    assert "detcli convert --cut" in entry.fix


def test_a_one_to_many_head_needs_nms():
    found = on_detector("one-to-many")
    assert found.keys() == {"one-to-many"}
    assert "--nms" in found["one-to-many"].fix
    assert on_detector("one-to-many", metadata={**NAMES, "detcli.nms": "0.7"}) == {}


def test_an_assumed_stride_matters_for_dynamic_sizes():
    names = {"names": NAMES["names"]}
    assert on_detector(metadata=names) == {}
    found = on_detector(metadata=names, size=None)
    assert found.keys() == {"assumed-stride"}
    assert "32 is assumed" in found["assumed-stride"].message


@pytest.mark.parametrize("tail", ["body", "one-to-many", "ultralytics", "authors"])
def test_a_sound_graph_needs_no_advice(tail):
    assert on_graph(colour_model.build(tail)) == {}


def test_a_transpose_that_feeds_the_output():
    model = colour_model.build("transposed")
    assert "rows feeds an output" in on_graph(model)["bare-transpose"].message
    model.graph.node[-1].name = "/last"
    found = on_graph(model)
    assert found.keys() == {"bare-transpose"}
    assert "the Transpose /last feeds" in found["bare-transpose"].message
    assert found["bare-transpose"].fix == "detcli convert --guard-transpose"


def test_versions_that_the_runtime_does_not_load():
    model = colour_model.build()
    model.opset_import[0].version = 999
    model.ir_version = 999
    found = on_graph(model)
    newest = newest_opset(999)
    assert found["opset-too-new"].message == f"opset 999: this ONNX Runtime supports up to {newest}"
    assert f"opset {newest} or lower" in found["opset-too-new"].fix
    assert found["ir-too-new"].message.startswith("file format (IR) 999")
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


def test_the_newest_version_loads_and_the_next_does_not():
    opset, ir = newest_opset(1 << 40), newest_ir(1 << 40)
    assert opset >= 17
    assert ir >= 8
    assert loads(opset, 8)
    assert loads(17, ir)
    assert not loads(opset + 1, 8)
    assert not loads(17, ir + 1)


@pytest.mark.parametrize("newest", [newest_opset, newest_ir])
@pytest.mark.parametrize("own", [-5, 1, 8])
def test_a_version_that_loads_or_is_too_old_is_returned(newest, own):
    assert newest(own) == own


def test_the_search_is_short(monkeypatch):
    asked = []
    monkeypatch.setattr(advice, "_takes", lambda _, opset: asked.append(opset) or opset <= 26)
    assert newest_opset(27) == 26
    assert newest_opset(10**12) == 26
    assert len(asked) < 60


def test_external_data_is_named():
    found = on_graph(colour_model.build(), (ExternalFile("weights.bin", 8, "0" * 64),))
    assert "weights are in weights.bin" in found["external-data"].message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_weight_that_is_not_finite(value, dtype):
    weight = WEIGHT.astype(dtype)
    assert "weights-not-finite" not in on_graph(with_weight(weight))
    weight[1, 2] = value
    found = on_graph(with_weight(weight))
    assert "1 weights hold NaN or infinity, such as weight" in found["weights-not-finite"].message


def test_weights_listed_as_inputs():
    assert on_graph(with_weight(WEIGHT)) == {}
    found = on_graph(with_weight(WEIGHT, listed=True))
    assert found.keys() == {"weights-as-inputs"}


def test_sparse_constants():
    model = colour_model.build()
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert on_graph(model).keys() == {"sparse-weights"}


def test_objections_of_the_checker_are_quoted():
    model = colour_model.build()
    model.graph.node[0].op_type = "NoSuchOperator"
    found = on_graph(model)
    assert found.keys() == {"invalid"}
    assert "NoSuchOperator" in found["invalid"].message
    assert "\n" not in found["invalid"].message


def test_real_models(shared):
    """Every shared model, to notice new warnings."""
    expected = {
        "yolov10n-thu": {"names-missing", "top-k-cap"},
        "yolov10n-ultralytics": {"top-k-cap"},
        "yolov10n-ultralytics-dynamic": {"top-k-cap"},
        "yolov10n-raw": set(),
        "yolov10n-raw-dynamic": set(),
        "yolov10n-raw-fp16": set(),
        "yolov8n-320-int8": {"one-to-many"},
    }
    for name, codes in expected.items():
        model = infer_shapes(onnx.load(shared(f"models/{name}.onnx")))
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        reading = read_graph(model, name)
        advised = advise_on_detector(reading.contract, metadata, describe(model, reading, None).cut)
        found = {entry.code for entry in advised}
        assert found | on_graph(model).keys() == codes, name
