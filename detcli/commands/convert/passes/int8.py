"""Quantise the convolutions of a graph to 8 bits."""

from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np
from onnx import ModelProto

from detcli.backend.runtime import onnxruntime
from detcli.errors import ModelError
from detcli.model.editing import copied, number_nodes, opset, sort_nodes
from detcli.model.graph import is_quantised

del onnxruntime  # loaded first, so that detcli decides how it is loaded

MIN_OPSET = 13  # a scale for each channel
SILU_FLOOR = -8.0
"""Below this, SiLU (x times its sigmoid) is closer to 0 than 0.003, less than 8 bits resolve."""


def to_int8(
    model: ModelProto,
    ranges: Mapping[str, tuple[float, float]],
    exact: Collection[str] = (),
) -> ModelProto:
    """Compute convolutions in 8 bits. A quantised model is returned unchanged.

    ONNX Runtime quantises: QuantizeLinear and DequantizeLinear around each convolution, weights
    with a scale for each channel, activations with one for the whole tensor (uint8, as suits
    CPUs). Everything else stays in float32.

    Args:
        model: A float32 graph.
        ranges: The lowest and highest value of each tensor that a convolution reads or makes.
        exact: First outputs of the convolutions that stay in float32.

    Raises:
        ModelError: The opset is too old, or there is no convolution to quantise.
    """
    if is_quantised(model.graph):
        return copied(model)
    if opset(model) < MIN_OPSET:
        raise ModelError(
            f"--int8: the graph is of opset {opset(model)}, and scales for each channel need "
            f"{MIN_OPSET} or later",
            f"export the model again with opset {MIN_OPSET}",
        )
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import QuantType

    given = copied(model)
    names = number_nodes(given.graph)
    chosen = [
        node.name
        for node in given.graph.node
        if node.op_type == "Conv" and node.output[0] not in exact
    ]
    if not chosen:
        raise ModelError("--int8: the graph has no convolution in front of its head")
    readers = defaultdict(set)
    for node in given.graph.node:
        for name in node.input:
            readers[name].add(node.op_type)
    values = {
        name: tuple(np.array(limit, np.float32) for limit in _useful(readers[name], limits))
        for name, limits in ranges.items()
    }
    quantizer = QDQQuantizer(
        given,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, values),
        nodes_to_quantize=chosen,
        nodes_to_exclude=[],
        op_types_to_quantize=["Conv"],
        extra_options={},
    )
    quantizer.quantize_model()
    quantised: ModelProto = quantizer.model.model
    for node in quantised.graph.node:
        node.name = names.get(node.name, node.name)
    sort_nodes(quantised.graph)
    return quantised


def _useful(readers: set[str], limits: tuple[float, float]) -> tuple[float, float]:
    """The part of a tensor's range that the operators that read it depend on."""
    low, high = limits
    return (max(low, SILU_FLOOR), high) if readers == {"Sigmoid", "Mul"} else limits
