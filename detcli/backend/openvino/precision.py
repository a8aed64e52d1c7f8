"""The precision that OpenVINO is asked for, and the precision that it computes in."""

import importlib
from collections import Counter
from typing import NamedTuple

import numpy as np

from detcli.backend.openvino.library import CompiledModel, Core, import_openvino
from detcli.core.errors import DeviceError

HALF_PRECISIONS = {"CPU": "bf16", "GPU": "f16", "NPU": "f16"}
"""What half precision is on each type of device."""

CAPABILITIES = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
"""What OpenVINO calls a precision in floats among the capabilities of a device."""

INTEGER_NAMES = {"i8": "int8", "u8": "int8"}
"""What detcli calls a precision in integers, by OpenVINO's name."""

MULTIPLYING = {"Convolution", "Deconvolution", "FullyConnected", "GroupConvolution", "MatMul"}
"""The kinds of layers that multiply, which takes nearly all of the time of a network."""


class RunningLayer(NamedTuple):
    """A layer of a compiled network, as OpenVINO runs it; "" where OpenVINO does not report it."""

    kind: str  # such as "Convolution"
    precision: str  # such as "f32"
    kernel: str  # name of the code that computes it, such as "jit_avx512_f32"


def choose_precision(core: Core, openvino_name: str, *, half: bool) -> str:
    """Choose the precision to ask OpenVINO for, which has to be one that the device computes in.

    OpenVINO is always told a precision: left alone, it computes in half precision wherever the
    device has it.

    Args:
        core: OpenVINO's Core.
        openvino_name: OpenVINO's name of the device, such as "CPU" or "GPU.1".
        half: Whether half precision was asked for, and not float32.

    Returns:
        "f32", or with `half` the device's "bf16" or "f16".

    Raises:
        DeviceError: The device does not compute in that precision, or would only imitate it.
    """
    precision = "f32"
    hint = "use --half, or --device openvino:CPU"  # if the device does not compute in float32
    if half:
        device_type = openvino_name.partition(".")[0]  # "GPU" of "GPU.1", the second graphics card
        precision = HALF_PRECISIONS[device_type]
        hint = "leave --half out"

    device_capabilities = core.get_property(openvino_name, "OPTIMIZATION_CAPABILITIES")
    is_supported = CAPABILITIES[precision] in device_capabilities
    if precision == "bf16":  # of a CPU, which may list it although it only imitates it
        if not (is_supported and _multiplies_bf16(core)):
            raise DeviceError(
                "--half would be slower: this processor does not multiply in bfloat16, which "
                "OpenVINO could only imitate",
                "leave it out, or convert the model with detcli convert --int8",
            )
    elif not is_supported:
        raise DeviceError(
            f"OpenVINO's {openvino_name} does not compute in {precision}, but in "
            f"{', '.join(device_capabilities)}",
            hint,
        )
    return precision


def _multiplies_bf16(core: Core) -> bool:
    """Find out whether this processor has instructions that multiply in bfloat16.

    OpenVINO also lists bfloat16 for processors that could only imitate it with other instructions.
    So a small convolution is compiled for bfloat16, and the name of the kernel that OpenVINO chose
    for it tells which instructions it uses.
    """
    openvino = import_openvino()
    operators = importlib.import_module("openvino.opset13")
    image = operators.parameter([1, 16, 8, 8], np.float32)
    weights = np.ones((16, 16, 3, 3), np.float32)
    convolution = operators.convolution(
        image, weights, strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]
    )
    network = openvino.Model([convolution], [image])
    try:
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    except RuntimeError:
        return False
    for layer in _running_layers(compiled):
        # The generic kernels for AVX-512 widen bfloat16 to float32 before they multiply.
        if layer.kind in MULTIPLYING and layer.kernel.startswith("jit_avx512"):
            return False
    return True


def precision_of(compiled: CompiledModel) -> str:
    """Find out which precisions the layers of a compiled network compute in.

    The layers that multiply take nearly all of the time, so their precisions are returned. In a
    network without such layers, it is the most frequent precision of all layers that compute in
    floats. Where OpenVINO does not report the layers, it is the precision that was asked for.

    Returns:
        One precision such as "f32", or several, the most frequent first: "int8+bf16".
    """
    requested: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    try:
        layers = _running_layers(compiled)
    except RuntimeError:  # The plug-ins of some devices do not report their layers.
        return requested

    float_counts: Counter[str] = Counter()  # number of layers in floats, by precision
    multiplying_counts: Counter[str] = Counter()  # number of layers that multiply, by precision
    for layer in layers:
        if layer.precision in CAPABILITIES:  # a float
            float_counts[layer.precision] += 1
            name = layer.precision
        elif layer.precision in INTEGER_NAMES:
            name = INTEGER_NAMES[layer.precision]
        else:
            continue
        if layer.kind in MULTIPLYING:
            multiplying_counts[name] += 1

    if multiplying_counts:
        return "+".join(precision for precision, _count in multiplying_counts.most_common())
    if float_counts:
        most_frequent, _count = float_counts.most_common(1)[0]
        return most_frequent
    return requested


def _running_layers(compiled: CompiledModel) -> list[RunningLayer]:
    """List the layers of a compiled network, which OpenVINO has fused from those of its graph.

    Raises:
        RuntimeError: The plug-in of the device does not report its layers.
    """
    layers = []
    for node in compiled.get_runtime_model().get_ops():
        properties = node.get_rt_info()
        kind = ""
        if "layerType" in properties:
            kind = properties["layerType"].astype(str)
        precision = ""
        if "runtimePrecision" in properties:
            # The names of precisions differ by plug-in: f16, FP16.
            precision = properties["runtimePrecision"].astype(str).lower().replace("fp", "f")
        kernel = ""
        if "primitiveType" in properties:
            kernel = properties["primitiveType"].astype(str)
        layers.append(RunningLayer(kind, precision, kernel))
    return layers
