import numpy as np
import pytest

from detcli.backend import nvidia
from detcli.commands.verify import plan as module
from detcli.commands.verify.plan import Request, device_name, make_plan
from detcli.commands.verify.report import Selection
from detcli.commands.verify.tolerance import EXACT, REDUCED, Precision
from detcli.errors import DetcliWarning, ModelError, UsageError
from detcli.settings import Settings


@pytest.fixture
def body(make_model):
    return make_model("body.onnx")


@pytest.fixture
def whole(make_model):
    return make_model("whole.onnx", tail="ultralytics")


def test_an_end_to_end_graph_alone_is_compared_with_its_own_selection(whole):
    plan = make_plan(Request(whole))
    assert plan.selections == (Selection.DETCLI, Selection.GRAPH)
    assert plan.devices == ("cpu", "cpu")
    assert plan.files[0] is plan.files[1]
    assert plan.rules.max_det == 16  # what the graph keeps
    assert plan.settings.max_det == 16


def test_two_models(body, whole):
    plan = make_plan(Request(body, whole))
    assert plan.selections == (Selection.DETCLI, Selection.DETCLI)
    assert plan.rules.max_det == 300
    assert plan.rules.tolerance == EXACT
    assert [contract.head for contract in plan.heads] == ["head", "head"]
    plan = make_plan(Request(body, whole, against="graph"))
    assert plan.selections == (Selection.DETCLI, Selection.GRAPH)
    assert plan.heads is None


def test_two_devices(body):
    plan = make_plan(Request(body, against="cuda"))
    assert plan.devices == ("cpu", "cuda:0")
    assert make_plan(Request(body, device="cuda:1", against="cpu")).devices == ("cuda:1", "cpu")


def test_half_precision_of_a_file_or_of_tensorrt(body, make_model):
    half = make_model("half.onnx", dtype=np.float16)
    plan = make_plan(Request(body, half))
    assert plan.precisions == (Precision.FLOAT32, Precision.FLOAT16)
    assert plan.rules.tolerance == REDUCED
    plan = make_plan(Request(body, against="tensorrt", half=True))
    assert plan.precisions == (Precision.FLOAT32, Precision.FLOAT16)
    assert [options.half for options in plan.options] == [False, True]
    with pytest.raises(UsageError, match="--half has no effect"):
        make_plan(Request(body, half, half=True))


def test_both_sides_run_with_the_lowered_confidence(body, whole):
    plan = make_plan(Request(body, whole, settings=Settings(conf=0.5), tolerance={"score": 0.1}))
    assert plan.rules.conf == 0.5
    assert plan.settings.conf == pytest.approx(0.4)


def test_nothing_to_compare_with(body):
    with pytest.raises(UsageError, match=r"nothing to compare body.onnx with") as raised:
        make_plan(Request(body))
    assert all(way in raised.value.hint for way in ("OTHER", "cuda", "--against graph"))


def test_the_same_twice(body):
    with pytest.raises(UsageError, match=r"both ways are the same: body.onnx on cpu"):
        make_plan(Request(body, against="cpu"))
    with pytest.raises(UsageError, match=r"both ways are the same: body.onnx on cuda:0"):
        make_plan(Request(body, device="cuda", against="cuda:0"))


def test_a_graph_without_selection(body):
    with pytest.raises(UsageError, match=r"no selection of its own.*layout is body"):
        make_plan(Request(body, against="graph"))


def test_no_detector_has_no_selection(tmp_path, whole):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(whole.read_bytes().replace(b"ReduceMax", b"ReduceMin"))
    with pytest.raises(ModelError, match="not a detector"):
        make_plan(Request(broken, against="graph"))


def test_tensors_of_one_network(whole):
    with pytest.raises(UsageError, match="compare two networks"):
        make_plan(Request(whole, tensors=True))


def test_random_pictures_are_for_tensors_only(body, whole):
    with pytest.raises(UsageError, match="random pictures say nothing about detections"):
        Request(body, whole, random=True)
    assert make_plan(Request(body, whole, random=True, tensors=True)).input_size == (64, 64)


@pytest.mark.parametrize("iou", [0, -1, 1.5])
def test_an_iou_out_of_range(body, iou):
    with pytest.raises(UsageError, match="--iou"):
        Request(body, least_iou=iou)


def test_other_class_names(body, make_model):
    other = make_model("other.onnx", metadata={"names": "['red', 'blue', 'green']"})
    with pytest.warns(DetcliWarning, match="2 have different names: 1 is 'green' and 'blue'"):
        make_plan(Request(body, other))


@pytest.mark.parametrize(("gpus", "name"), [(0, "cpu"), (2, "cuda:0")])
def test_auto(monkeypatch, gpus, name):
    monkeypatch.setattr(module, "count_gpus", lambda: gpus)
    assert nvidia.count_gpus is not module.count_gpus
    assert device_name("auto") == name


@pytest.mark.parametrize("name", ["gpu", "", "cpu:0", "cuda:", "cuda:x", "graph", "auto:1"])
def test_unknown_devices(name):
    with pytest.raises(UsageError, match="no device is called"):
        device_name(name)


def test_device_names():
    names = "cpu", "cuda", "cuda:03", "tensorrt"
    assert [device_name(name) for name in names] == ["cpu", "cuda:0", "cuda:3", "tensorrt:0"]
