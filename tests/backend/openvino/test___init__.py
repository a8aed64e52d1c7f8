"""Models in 8 bits, which OpenVINO computes right if their input size is fixed."""

import contextlib
from types import SimpleNamespace

import optional
import pytest

from detcli.backend import open_backend
from detcli.backend import openvino as package
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import ModelError
from detcli.model.prepared import prepare

pytestmark = optional.needs("openvino")


@pytest.mark.parametrize(
    ("shape", "precision", "refused"),
    [
        ([-1, 3, -1, 64], "int8+f32", True),
        ([-1, 3, 64, 64], "int8", False),
        ([-1] * 4, "f32", False),
    ],
)
def test_networks_in_8_bits_of_free_size_are_refused(
    shape, precision, refused, make_model, monkeypatch
):
    openvino = optional.require("openvino")
    model_input = SimpleNamespace(get_partial_shape=lambda: openvino.PartialShape(shape))
    compiled = SimpleNamespace(input=lambda _: model_input, get_property=lambda _: 1)
    monkeypatch.setattr(package, "open_network", lambda **_: (compiled, precision))
    model = prepare(make_model())
    with pytest.raises(ModelError, match="8 bits") if refused else contextlib.nullcontext():
        package.open_backend(model, Device.parse("openvino"), DeviceOptions())


@pytest.mark.slow
def test_int8_models_run_in_int8(shared):
    model = prepare(shared("models/yolov8n-320-int8.onnx"))
    backend = open_backend("openvino", model)
    assert backend.precision.split("+")[0] == "int8"
    assert "bf16" not in backend.precision
    backend.close()
