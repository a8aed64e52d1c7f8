"""The precision that OpenVINO is asked for, and the one that it computes in."""

import importlib
from collections import Counter
from typing import Any

import numpy as np

from detcli.backend.openvino.library import library
from detcli.core.errors import DeviceError

HALF = {"CPU": "bf16", "GPU": "f16", "NPU": "f16"}
CAPABILITY = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
"""What OpenVINO calls a precision among the capabilities of a device."""

# Layers that take nearly all of the time, and whose precision counts.
MULTIPLYING = {"Convolution", "Deconvolution", "FullyConnected", "GroupConvolution", "MatMul"}

NAMES = {"i8": "int8", "u8": "int8"}


def choose_precision(core: Any, unit: str, *, half: bool) -> str:  # noqa: ANN401
    """Choose the precision to ask OpenVINO for, which has to be one that the device computes in.

    It is always asked for, since OpenVINO's own default is half precision wherever the device has
    it.

    Args:
        core: OpenVINO's Core.
        unit: OpenVINO's name of the device, such as "CPU" or "GPU.1".
        half: Whether half precision was asked for, and not float32.

    Returns:
        "f32", or with `half` the device's "bf16" or "f16".

    Raises:
        DeviceError: The device does not compute in that precision, or would only imitate it.
    """
    precision = "f32"
    if half:
        device_kind = unit.partition(".")[0]  # "GPU" of "GPU.1", the second graphics card
        precision = HALF[device_kind]
    capabilities = core.get_property(unit, "OPTIMIZATION_CAPABILITIES")
    is_supported = CAPABILITY[precision] in capabilities
    if precision == "bf16" and not (is_supported and _multiplies_bf16(core)):
        raise DeviceError(
            "--half would be slower: this processor does not multiply in bfloat16, which OpenVINO "
            "could only imitate",
            "leave it out, or convert the model with detcli convert --int8",
        )
    if not is_supported:
        hint = "use --half, or --device openvino:CPU"
        if half:
            hint = "leave --half out"
        raise DeviceError(
            f"OpenVINO's {unit} does not compute in {precision}, but in {', '.join(capabilities)}",
            hint,
        )
    return precision


def _multiplies_bf16(core: Any) -> bool:  # noqa: ANN401
    """Find out whether this processor has instructions that multiply in bfloat16.

    OpenVINO lists bfloat16 also for processors that could only imitate it with other instructions.
    So a small convolution is compiled for bfloat16, and the name of the kernel that OpenVINO chose
    for it tells which instructions it uses.
    """
    openvino = library()
    operators = importlib.import_module("openvino.opset13")
    image = operators.parameter([1, 16, 8, 8], np.float32)
    weights = np.ones((16, 16, 3, 3), np.float32)
    layer = operators.convolution(image, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    network = openvino.Model([layer], [image])
    try:
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    except RuntimeError:
        return False
    for kind, _precision, kernel in _layers(compiled):
        # The generic kernels for AVX-512 widen bfloat16 to float32 before they multiply.
        if kind in MULTIPLYING and kernel.startswith("jit_avx512"):
            return False
    return True


def precision_of(compiled: Any) -> str:  # noqa: ANN401
    """Find out which precisions the layers of a compiled network compute in.

    The layers that multiply take nearly all of the time, so their precisions count. In a network
    without any, it is the most frequent precision of all layers that compute in floats. Where
    OpenVINO does not tell the layers, it is the precision that was asked for.

    Returns:
        One precision such as "f32", or several, the most frequent first: "int8+bf16".
    """
    requested: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    try:
        layers = _layers(compiled)
    except RuntimeError:  # The plug-ins of some devices do not tell their layers.
        return requested

    multiplying_layers: Counter[str] = Counter()  # number of layers by precision
    float_layers: Counter[str] = Counter()
    for kind, precision, _kernel in layers:
        if kind in MULTIPLYING and (precision in CAPABILITY or precision in NAMES):
            multiplying_layers[NAMES.get(precision, precision)] += 1
        if precision in CAPABILITY:
            float_layers[precision] += 1
    if multiplying_layers:
        return "+".join(precision for precision, _count in multiplying_layers.most_common())
    if not float_layers:
        return requested
    most_frequent, _count = float_layers.most_common(1)[0]
    return most_frequent


def _layers(compiled: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401
    """List the layers of a compiled network.

    Returns:
        Of each layer its kind ("Convolution"), its precision ("f32") and the name of its kernel;
        empty where OpenVINO does not tell.
    """
    layers = []
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        kind, precision, kernel = "", "", ""
        if "layerType" in info:
            kind = info["layerType"].astype(str)
        if "runtimePrecision" in info:
            # The names of precisions differ by plug-in: f16, FP16.
            precision = info["runtimePrecision"].astype(str).lower().replace("fp", "f")
        if "primitiveType" in info:
            kernel = info["primitiveType"].astype(str)
        layers.append((kind, precision, kernel))
    return layers
