"""The whole of a verification, without the command line around it."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import verify_requests
from colour_model import picture
from damaged_graphs import maker

from detcli.commands.verify import running as module
from detcli.commands.verify.running import random_item
from detcli.core.comparison import Order
from detcli.core.errors import DetcliWarning, DeviceError, ModelError
from detcli.core.geometry import Picture
from detcli.core.record import Origin
from detcli.run.detector import Detector
from detcli.source.loading import Item


def item(name, *squares):
    image = Picture.whole(picture(*squares))
    return Item(Origin(name), lambda: image)


ITEMS = [item("grey"), item("red", ("red", 1, 1)), item("two", ("red", 2, 2), ("blue", 5, 5))]


def verified(*models, items=ITEMS, **values):
    return verify_requests.verified(items, *models, **{"conf": 0.6} | values)


def test_a_tail_in_the_wrong_order_is_found(make_model, tmp_path):
    model = onnx.load(make_model(tail="authors"))
    maker(model, "detections").output[0] = "forward"
    for name, value in (("from", -1), ("to", -1000), ("rows_axis", 1), ("by", -1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    read = ["forward", "from", "to", "rows_axis", "by"]
    model.graph.node.append(onnx.helper.make_node("Slice", read, ["detections"]))
    (tmp_path / "order.onnx").write_bytes(model.SerializeToString())
    report = verified(tmp_path / "order.onnx", conf=0.1)
    assert report.detections.pictures[1].order is Order.WRONG
    assert report.detections.disagreeing == 0
    assert report.failures == ["detections are not sorted by descending score on 2 pictures"]


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


def test_random_pictures_are_the_same_for_a_seed():
    one, again, other = (random_item(seed, (8, 16)).load().pixels for seed in (1, 1, 2))
    assert one.shape == (8, 16, 3)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_damaged_picture_is_compared_with_a_warning(make_model):
    damaged = replace(Picture.whole(picture()), warnings=("damaged: torn",))
    with pytest.warns(DetcliWarning, match=r"^torn\.jpg: damaged: torn$"):
        report = verified(
            make_model(tail="ultralytics"),
            items=[*ITEMS, Item(Origin("torn.jpg"), lambda: damaged)],
        )
    assert report.compared == 4


def test_batches_and_a_rest(make_model):
    report = verified(make_model(batch=2), make_model("b.onnx"))
    assert (report.agree, report.compared, report.tensors) == (True, 3, None)
    found = [(picture.source, picture.left) for picture in report.detections.pictures]
    assert found == [("grey", 0), ("red", 1), ("two", 2)]


class Overwriting(Detector):
    """A device whose buffer the next batch overwrites, as CUDA graphs do without a copy."""

    def __init__(self, path, device, settings, options):
        super().__init__(path, "cpu", settings, options)
        self.device, self.in_flight = str(device), 3
        self._latest = None

    def submit(self, pictures):
        self._latest = super().submit(pictures)
        return lambda: self._latest()  # noqa: PLW0108 - whichever is the latest then


@pytest.fixture
def cuda_is(monkeypatch):
    """Let another detector run on GPUs."""

    def replace(kind):
        def choose(path, device, settings, options):
            return (Detector if str(device) == "cpu" else kind)(path, device, settings, options)

        monkeypatch.setattr(module, "Detector", choose)

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
    assert [picture.agrees for picture in report.detections.pictures] == [False, False, True]
