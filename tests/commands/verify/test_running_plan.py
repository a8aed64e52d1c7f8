from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from verify_requests import plan_of

from detcli.backend import cuda, nvidia
from detcli.core.comparison import EXACT, REDUCED
from detcli.core.errors import DetcliWarning, DeviceError, ModelError, UsageError
from detcli.model.editing import cut, infer_shapes


@pytest.fixture
def body(make_model):
    return make_model("body.onnx")


@pytest.fixture
def whole(make_model):
    return make_model("whole.onnx", tail="ultralytics")


@pytest.fixture
def broken(tmp_path, whole):
    """A graph that is not a detector."""
    path = tmp_path / "broken.onnx"
    model = infer_shapes(onnx.load(whole))
    path.write_bytes(cut(model, "scores").SerializeToString())
    return path


def devices(plan):
    return tuple(side.device for side in plan.reports)


def selections(plan):
    return [side.selection for side in plan.reports]


def test_an_end_to_end_graph_alone_is_compared_with_its_own_selection(whole):
    plan = plan_of(whole)
    assert selections(plan) == ["detcli", "graph"]
    assert devices(plan) == ("cpu", "cpu")
    assert plan.sides[0].file is plan.sides[1].file
    assert plan.rules.max_det == 16  # what the graph keeps
    assert plan.settings.max_det == 16


def test_two_models(body, whole):
    plan = plan_of(body, whole)
    assert selections(plan) == ["detcli", "detcli"]
    assert plan.rules.max_det == 300
    assert plan.rules.tolerance == EXACT
    assert plan.compares_heads
    plan = plan_of(body, whole, against="graph")
    assert selections(plan) == ["detcli", "graph"]
    assert not plan.compares_heads


def test_devices(body):
    for device, against, expected in (
        ("cpu", "cuda", ("cpu", "cuda:0")),
        ("cuda:1", "cpu", ("cuda:1", "cpu")),
        ("cpu", "tensorrt:03", ("cpu", "tensorrt:3")),
    ):
        assert devices(plan_of(body, device=device, against=against)) == expected
    with pytest.raises(UsageError, match=r"both sides are the same: body.onnx on cuda:0"):
        plan_of(body, device="cuda", against="cuda:0")


def test_half_precision_of_a_file_or_of_a_device(body, make_model):
    half = make_model("half.onnx", dtype=np.float16)
    plan = plan_of(body, half)
    assert [side.precision for side in plan.reports] == ["float32", "float16"]
    assert plan.rules.tolerance == REDUCED
    for device, precision in (
        ("tensorrt", "float16"), ("openvino", "bfloat16"), ("openvino:GPU", "float16")
    ):  # fmt: skip
        plan = plan_of(body, against=device, half=True)
        assert [side.precision for side in plan.reports] == ["float32", precision]
        assert [side.options.half for side in plan.sides] == [False, True]
    with pytest.raises(UsageError, match="--half has no effect"):
        plan_of(body, half, half=True)


def test_both_sides_run_with_the_lowered_confidence(body, whole, make_model):
    recommends = make_model(
        "r.onnx", metadata={"names": "['red', 'green', 'blue']", "detcli.conf": "0.6"}
    )
    assert plan_of(recommends, body, tolerance={"score": 0.1}).rules.conf == 0.6
    plan = plan_of(body, whole, conf=0.5, tolerance={"score": 0.1})
    assert plan.rules.conf == 0.5
    assert plan.settings.conf == pytest.approx(0.4)


def test_a_graph_that_is_not_a_detector_has_no_selection(broken):
    with pytest.raises(ModelError, match="not a detector"):
        plan_of(broken, against="graph")


def test_tensors_need_two_networks(whole):
    with pytest.raises(UsageError, match="compare two networks"):
        plan_of(whole, tensors=True)


def test_other_class_names(body, make_model):
    other = make_model("other.onnx", metadata={"names": "['red', 'blue', 'green']"})
    with pytest.warns(DetcliWarning, match="2 have different names: 1 is 'green' and 'blue'"):
        plan_of(body, other)


def test_auto_is_where_the_model_loads_as_in_predict(monkeypatch, body, whole, broken):
    monkeypatch.setattr(nvidia, "count_gpus", lambda: 0)
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: True)
    on_openvino = plan_of(body, broken, device="auto", tensors=True)
    assert devices(on_openvino) == ("openvino:CPU", "openvino:CPU")
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)
    assert devices(plan_of(body, whole, device="auto")) == ("cpu", "cpu")

    opened = SimpleNamespace(device="cuda:0", close=lambda: None)
    monkeypatch.setattr(nvidia, "count_gpus", lambda: 1)
    monkeypatch.setattr(cuda, "open_backend", lambda *_: opened)
    assert devices(plan_of(body, against="auto")) == ("cpu", "cuda:0")

    def refuse(*_):
        raise DeviceError("no libcudnn", "install it")

    monkeypatch.setattr(cuda, "open_backend", refuse)
    monkeypatch.setattr(cuda, "open_tensors", refuse)
    for model in (body, broken):
        with pytest.warns(DetcliWarning, match="the CPU is used: no libcudnn"):
            plan = plan_of(model, whole, device="auto", tensors=True)
        assert devices(plan) == ("cpu", "cpu")


def test_the_input_size_of_both_networks(make_model):
    fixed, free = make_model(), make_model("free.onnx", size=None)
    other = make_model("other.onnx", size=128)
    assert plan_of(fixed, free).input_size == (64, 64)
    assert plan_of(free, free, imgsz=96).input_size == (96, 96)
    assert plan_of(free, free).input_size == (640, 640)
    for model, imgsz, says in (
        (other, None, "64x64 and 128x128"),
        (free, 96, "64x64 pictures only"),
    ):
        with pytest.raises((ModelError, UsageError), match=says):
            _ = plan_of(fixed, model, imgsz=imgsz).input_size


def test_a_network_that_does_not_take_pictures(make_model, tmp_path):
    model = onnx.load(make_model())
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    (tmp_path / "four.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="does not take a picture"):
        _ = plan_of(*[tmp_path / "four.onnx"] * 2).input_size
