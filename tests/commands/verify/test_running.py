"""The whole of a verification, without the command line around it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import optional
import pytest
import verify_requests
from colour_model import image, image_of
from graph_edits import producer_of
from verify_requests import plan_of

from detcli.backend import cuda, nvidia
from detcli.commands.verify import running_plan as module
from detcli.commands.verify.running import random_item
from detcli.compare.detections import COARSE, EXACT, REDUCED, Order
from detcli.core.errors import DetcliWarning, DeviceError, ModelError, UsageError
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.model.editing import cut, infer_shapes
from detcli.run.batches import BatchDetector
from detcli.source.loading import Item


def item(name, *squares):
    pixels = Image.whole(image_of(squares))
    return Item(Origin(name), lambda: pixels)


ITEMS = [item("grey"), item("red", ("red", 1, 1)), item("two", ("red", 2, 2), ("blue", 5, 5))]


def verified(*models, items=ITEMS, **values):
    return verify_requests.verified(items, *models, **{"conf": 0.6} | values)


def test_a_tail_in_the_wrong_order_is_found(make_model, tmp_path):
    model = onnx.load(make_model(tail="authors"))
    producer_of(model.graph, "detections").output[0] = "forward"
    for name, value in (("from", -1), ("to", -1000), ("rows_axis", 1), ("by", -1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    read = ["forward", "from", "to", "rows_axis", "by"]
    model.graph.node.append(onnx.helper.make_node("Slice", read, ["detections"]))
    (tmp_path / "order.onnx").write_bytes(model.SerializeToString())
    report = verified(tmp_path / "order.onnx", conf=0.1)
    assert report.detections.pictures[1].order is Order.WRONG
    assert report.detections.disagreeing == 0
    assert report.failures == ["detections are not sorted by descending score on 2 images"]


def test_networks_that_are_not_detectors_have_tensors(make_model, tmp_path):
    path = tmp_path / "b.onnx"
    model = onnx.load(make_model())
    model.graph.output[0].name = "cells"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="not a detector"):
        verified(make_model(), path)
    report = verified(make_model(), path, tensors=True)
    assert "not a detector" in report.no_detections
    assert report.detections is report.left.selection is None
    (tensor,) = report.tensors
    assert tensor.name == "head and cells"


def test_random_images_are_the_same_for_a_seed():
    image = random_item(1, (8, 16)).load().pixels
    same_seed = random_item(1, (8, 16)).load().pixels
    other_seed = random_item(2, (8, 16)).load().pixels
    assert image.shape == (8, 16, 3)
    np.testing.assert_array_equal(image, same_seed)
    assert (image != other_seed).any()


def test_a_damaged_image_is_compared_with_a_warning(make_model):
    damaged = replace(Image.whole(image()), warnings=("damaged: torn",))
    with pytest.warns(DetcliWarning, match=r"^torn\.jpg: damaged: torn$"):
        report = verified(
            make_model(tail="ultralytics"),
            items=ITEMS + [Item(Origin("torn.jpg"), lambda: damaged)],
        )
    assert report.compared == 4


def test_batches_and_a_rest(make_model):
    report = verified(make_model(batch=2), make_model("b.onnx"))
    assert report.agree is True
    assert report.compared == 3
    assert report.tensors is None
    grey, red, two = report.detections.pictures
    assert grey.source == "grey"
    assert grey.left == 0
    assert red.source == "red"
    assert red.left == 1
    assert two.source == "two"
    assert two.left == 2


class Overwriting(BatchDetector):
    """A device whose buffer the next batch overwrites, as CUDA graphs do without a copy."""

    def __init__(self, path, device, settings, options):
        super().__init__(path, "cpu", settings, options)
        self.device, self.in_flight = str(device), 3
        self._latest = None

    def submit(self, images):
        self._latest = super().submit(images)
        return lambda: self._latest()  # noqa: PLW0108 - whichever is the latest then


@pytest.fixture
def cuda_is(monkeypatch):
    """Let another detector run on GPUs."""

    def replace(kind):
        def choose(path, device, settings, options):
            return (BatchDetector if str(device) == "cpu" else kind)(
                path, device, settings, options
            )

        monkeypatch.setattr(module, "BatchDetector", choose)

    return replace


def test_a_device_that_cannot_be_used(make_model, cuda_is):
    def refuse(_, device, *__):
        raise DeviceError(f"no {device}")

    cuda_is(refuse)
    with pytest.raises(DeviceError, match="no cuda:0"):
        verified(make_model(), against="cuda", tensors=True)


def test_a_buffer_that_is_overwritten_shows(make_model, cuda_is):
    """Several batches are in flight at once, so that it can."""
    cuda_is(Overwriting)
    report = verified(make_model(), against="cuda")
    assert not report.agree
    first, second, third = report.detections.pictures
    assert first.agrees is False
    assert second.agrees is False
    assert third.agrees is True


@pytest.fixture
def plan(make_model, tmp_path):
    """Plan with models of these names: of a head, of a whole graph, of half of it, of neither."""
    paths = {
        "body": make_model("body.onnx"),
        "whole": make_model("whole.onnx", tail="ultralytics"),
        "half": make_model("half.onnx", dtype=np.float16),
        "neither": tmp_path / "neither.onnx",
    }
    model = cut(infer_shapes(onnx.load(paths["whole"])), "scores")
    paths["neither"].write_bytes(model.SerializeToString())

    def plan_models(names, **values):
        models = [paths[name] for name in names.split()]
        return plan_of(*models, **values)

    return plan_models


def devices(plan):
    return [side.device for side in plan.reports]


@pytest.mark.parametrize(
    ("models", "values", "right", "tolerance"),
    [
        ("whole", {}, "cpu graph float32", EXACT),
        ("body whole", {}, "cpu detcli float32", EXACT),
        ("body whole", {"against": "graph"}, "cpu graph float32", EXACT),
        ("body", {"against": "cuda"}, "cuda:0 detcli float32", EXACT),
        ("body", {"against": "tensorrt:03"}, "tensorrt:3 detcli float32", EXACT),
        ("body", {"device": "cuda:1", "against": "cpu"}, "cpu detcli float32", EXACT),
        ("body half", {}, "cpu detcli float16", REDUCED),
        ("body", {"against": "tensorrt", "half": True}, "tensorrt:0 detcli float16", REDUCED),
        ("body", {"against": "openvino", "half": True}, "openvino:CPU detcli bfloat16", COARSE),
        ("body", {"against": "openvino:GPU", "half": True}, "openvino:GPU detcli float16", REDUCED),
    ],
)
def test_sides(plan, models, values, right, tolerance):
    planned = plan(models, **values)
    first, second = planned.reports
    first_device = values.get("device", "cpu")
    assert f"{first.device} {first.selection} {first.precision}" == f"{first_device} detcli float32"
    assert f"{second.device} {second.selection} {second.precision}" == right
    assert planned.rules.tolerance == tolerance
    first_side, second_side = planned.sides
    assert first_side.options.half is False
    assert second_side.options.half == ("half" in values)
    by_graph = "graph" in right
    assert planned.compares_heads != by_graph
    max_det = 16 if by_graph else 300  # what the graph keeps
    assert planned.rules.max_det == max_det
    assert planned.settings.max_det == max_det


def test_one_model_is_read_once(plan):
    left, right = plan("whole").sides
    assert left.file is right.file


@pytest.mark.parametrize(
    ("models", "values", "says"),
    [
        ("body", {"device": "cuda", "against": "cuda:0"}, "are the same: body.onnx on cuda:0"),
        ("body half", {"half": True}, "--half has no effect"),
        ("neither", {"against": "graph"}, "not a detector"),
        ("whole", {"tensors": True}, "compare two networks"),
    ],
)
def test_sides_that_do_not_fit(plan, models, values, says):
    with pytest.raises((ModelError, UsageError), match=says):
        plan(models, **values)


def test_both_sides_run_with_the_lowered_confidence(plan, make_model):
    recommends = make_model(
        "r.onnx", metadata={"names": "['red', 'green', 'blue']", "detcli.conf": "0.6"}
    )
    assert plan_of(recommends, make_model()).rules.conf == 0.6
    planned = plan("body whole", conf=0.5, tolerance={"score": 0.1})
    assert planned.rules.conf == 0.5
    assert planned.settings.conf == pytest.approx(0.4)


def test_other_class_names(make_model):
    other_model = make_model("other.onnx", metadata={"names": "['red', 'blue', 'green']"})
    with pytest.warns(DetcliWarning, match="2 have different ids: 'blue' is 2 and 1"):
        plan_of(make_model(), other_model)
    other_model = make_model("other.onnx", metadata={"names": "['red', 'lime', 'azure']"})
    with pytest.warns(DetcliWarning, match="2 have different names: 1 is 'green' and 'lime'"):
        plan_of(make_model(), other_model)


@optional.needs("openvino")
def test_auto_is_where_the_model_loads_as_in_predict(monkeypatch, plan):
    monkeypatch.setattr(nvidia, "count_gpus", lambda: 0)
    for openvino, device in ((True, "openvino:CPU"), (False, "cpu")):
        monkeypatch.setattr("detcli.backend.has_openvino", lambda has=openvino: has)
        assert devices(plan("body neither", device="auto", tensors=True)) == [device] * 2

    opened = SimpleNamespace(device="cuda:0", close=lambda: None)
    monkeypatch.setattr(nvidia, "count_gpus", lambda: 1)
    monkeypatch.setattr(cuda, "open_backend", lambda *_: opened)
    assert devices(plan("body", against="auto")) == ["cpu", "cuda:0"]

    def refuse(*_):
        raise DeviceError("no libcudnn", "install it")

    monkeypatch.setattr(cuda, "open_backend", refuse)
    monkeypatch.setattr(cuda, "open_tensors", refuse)
    for model in ("body", "neither"):
        with pytest.warns(DetcliWarning, match="the CPU is used: no libcudnn"):
            planned = plan(f"{model} whole", device="auto", tensors=True)
        assert devices(planned) == ["cpu", "cpu"]


def test_the_input_size_of_both_networks(make_model):
    fixed, free = make_model(), make_model("free.onnx", size=None)
    other_model = make_model("other.onnx", size=128)
    assert plan_of(fixed, free).input_size == (64, 64)
    assert plan_of(free, free, imgsz=96).input_size == (96, 96)
    assert plan_of(free, free).input_size == (640, 640)
    for model, imgsz, says in (
        (other_model, None, "64x64 and 128x128"),
        (free, 96, "64x64 images only"),
    ):
        with pytest.raises((ModelError, UsageError), match=says):
            _ = plan_of(fixed, model, imgsz=imgsz).input_size


def test_a_network_that_does_not_take_images(make_model, tmp_path):
    model = onnx.load(make_model())
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    (tmp_path / "four.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="does not take an image"):
        _ = plan_of(tmp_path / "four.onnx", tmp_path / "four.onnx").input_size
