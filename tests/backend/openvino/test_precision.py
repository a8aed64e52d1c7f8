"""The precision that is asked for on each device, and the one that layers compute in."""

import os

import optional
import pytest
from backend.openvino.doubles import layers

from detcli.backend.openvino.precision import choose_precision, precision_of
from detcli.core.errors import DeviceError

pytestmark = optional.needs("openvino")


class Core:
    """Stands for a core whose device lists these capabilities."""

    def __init__(self, capabilities):
        self.capabilities = capabilities

    def get_property(self, *_):
        return self.capabilities

    def compile_model(self, *_):
        raise RuntimeError("Supported primitive descriptors list is empty")


@pytest.mark.parametrize(
    ("unit", "half", "capabilities", "precision", "hint"),
    [
        ("GPU", False, ["FP32", "FP16"], "f32", None),
        ("GPU.1", True, ["FP32", "FP16"], "f16", None),
        ("NPU", True, ["FP16", "INT8"], "f16", None),
        ("CPU", False, ["BF16", "FP32"], "f32", None),
        ("CPU", True, ["FP32"], "--half would be slower", "leave it out"),
        ("CPU", True, ["FP32", "BF16"], "--half would be slower", "int8"),
        ("NPU", False, ["FP16", "INT8"], "does not compute in f32, but in FP16, INT8", "--half"),
        ("GPU", True, ["FP32"], "GPU does not compute in f16", "leave --half out"),
    ],
)
def test_the_precision_of_each_device(unit, half, capabilities, precision, hint):
    """One that the device lacks is refused."""
    core = Core(capabilities)
    if hint is None:
        assert choose_precision(core, unit, half=half) == precision
        return
    with pytest.raises(DeviceError, match=precision) as caught:
        choose_precision(core, unit, half=half)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("compiled", "precision"),
    [
        (layers(("Convolution", "f32", ""), ("Input", "f16", ""), ("Const", "u8", "")), "f32"),
        (
            layers(("Convolution", "u8", ""), ("Convolution", "u8", ""), ("MatMul", "bf16", "")),
            "int8+bf16",
        ),
        (layers(("Convolution", "i8", ""), ("Convolution", "u8", "")), "int8"),
        (
            layers(("Pooling", "f32", ""), ("Pooling", "f32", ""), ("Subgraph", "f16", "")),
            "f32",
        ),
        (layers(("Convolution", "FP16", ""), ("Const", "FP32", "")), "f16"),
        (layers(("Const", "i32", "")), "f16"),
    ],
)
def test_the_precision_is_that_of_the_layers_which_multiply(compiled, precision):
    assert precision_of(compiled) == precision


@pytest.mark.parametrize("isa", ["AVX512_CORE", "AVX2"])
def test_a_processor_without_bfloat16(isa, detcli, make_model, make_image):
    """oneDNN, which OpenVINO computes with, takes a lesser processor from ONEDNN_MAX_CPU_ISA."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    arguments = ["predict", make_image("a.png", ("red", 2, 3)), "-m", make_model()]
    usual = detcli(arguments, "--device", "cpu")
    lesser = detcli(arguments, "--device", "openvino", env=environment)
    assert lesser.returncode == 0, lesser.stderr
    assert lesser.stdout == usual.stdout.replace('"cpu"', '"openvino:CPU", "precision": "f32"')
    refused = detcli(arguments, "--device", "openvino", "--half", env=environment)
    assert refused.returncode == 5
    assert "this processor does not multiply in bfloat16" in refused.stderr
