"""Graph passes that change the type of the numbers: to float16, and to 8 bits.

As the passes of `passes.py`, each takes a model and returns a new one.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from detcli.backend.session import onnxruntime
from detcli.core.errors import ModelError
from detcli.model.editing import (
    copied,
    drop_unused,
    infer_shapes,
    number_nodes,
    opset,
    replace_nodes,
    sort_nodes,
    tensor_names,
)
from detcli.model.graph import attribute

del onnxruntime  # loaded first, so that detcli decides how it is loaded

Float32 = npt.NDArray[np.float32]

MIN_OPSET = 13  # a scale for each channel
# Below this, SiLU (x times its sigmoid) is closer to 0 than 0.003, less than 8 bits resolve.
SILU_FLOOR = -8.0


def to_half(
    model: ModelProto, float32_nodes: Collection[str] = (), *, keep_inputs_and_outputs: bool = False
) -> ModelProto:
    """Make a float32 graph compute in float16.

    ONNX Runtime converts (`onnxruntime.transformers.float16`), and its result is tidied up: a
    float32 tensor between two nodes that stay in float32 does not pass through float16, where it
    would become infinite after all, and no tensor is cast twice.

    Args:
        model: The model, which stays as it is.
        float32_nodes: The nodes that stay in float32, by their first outputs.
        keep_inputs_and_outputs: Whether the inputs and outputs of the graph stay float32.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half: ModelProto = infer_shapes(model)
    old_name_of = number_nodes(half.graph)  # the converter tells nodes apart by their names
    names_of_float32_nodes = [
        node.name for node in half.graph.node if node.output[0] in float32_nodes
    ]
    half = convert_float_to_float16(
        half,
        keep_io_types=keep_inputs_and_outputs,
        disable_shape_infer=True,
        node_block_list=names_of_float32_nodes,
    )
    for node in half.graph.node:
        node.name = old_name_of.get(node.name, node.name)
    _tidy_casts(half.graph, tensor_names(model.graph))
    sort_nodes(half.graph)
    del half.graph.value_info[:]  # the types of tensors have changed
    return infer_shapes(half)


def _tidy_casts(graph: GraphProto, model_tensors: set[str]) -> None:
    """Remove casts from float32 to float16 and back, and all but one of equal casts.

    Where two nodes stay in float32, ONNX Runtime's converter puts two casts between them, and gives
    the tensor `a` of the first node a new name:

        before:  node -> a -> node
        after:   node -> new_1 -> Cast to float16 -> a -> Cast to float32 -> new_2 -> node

    This function restores what was before. But if other nodes read `a` in float16, that tensor
    keeps the name, and the second node here reads `new_1`.

    Args:
        graph: The graph that the converter returned, which is changed.
        model_tensors: Names of all tensors before the conversion.
    """
    _drop_repeated_casts(graph)
    # In the example: {"a": "new_1"} and {"new_2": "new_1"}.
    float32_source_of = _sources_of_new_casts(graph, model_tensors)
    replacement_of = _replacements_of_casts(graph, model_tensors, float32_source_of)
    for node in graph.node:
        node.input[:] = [replacement_of.get(name, name) for name in node.input]

    # An output of the graph keeps its name, which its replacement takes over.
    graph_outputs = {value.name for value in graph.output}
    output_name_of = {
        replacement: name for name, replacement in replacement_of.items() if name in graph_outputs
    }
    _rename_tensors(graph, output_name_of)
    drop_unused(graph)

    # Where nothing reads the tensor in float16, its cast is gone, and its name is free.
    remaining_tensors = tensor_names(graph)
    original_name_of = {}
    for name, source in float32_source_of.items():
        is_unread_in_float16 = name not in remaining_tensors
        if is_unread_in_float16:
            original_name_of[source] = name
    _rename_tensors(graph, original_name_of)


def _sources_of_new_casts(graph: GraphProto, model_tensors: set[str]) -> dict[str, str]:
    """Find the casts to float16 that the converter has put behind nodes that stay in float32.

    Args:
        graph: The graph that the converter returned.
        model_tensors: Names of all tensors before the conversion.

    Returns:
        The float32 tensor that is cast, by the output of the cast, which has its original name.
    """
    source_of: dict[str, str] = {}
    for node in graph.node:
        if _casts_to(node, TensorProto.FLOAT16) and node.input[0] not in model_tensors:
            source_of[node.output[0]] = node.input[0]
    return source_of


def _replacements_of_casts(
    graph: GraphProto, model_tensors: set[str], float32_source_of: Mapping[str, str]
) -> dict[str, str]:
    """Find the float32 tensors to read in place of the outputs of casts to float32.

    A cast back from float16 is replaced by the tensor that was cast to float16 before. Where the
    converter has added several casts of one float16 tensor, all are replaced by the first.

    Args:
        graph: The graph that ONNX Runtime's converter returned.
        model_tensors: Names of all tensors before the conversion.
        float32_source_of: The float32 input of each new cast to float16, by the cast's output.

    Returns:
        The tensor to read, by the output of the cast; for the first of several casts, itself.
    """
    replacement_of: dict[str, str] = {}
    first_cast_of: dict[str, str] = {}  # the output of the first cast, by the tensor it casts
    for node in graph.node:
        if not _casts_to(node, TensorProto.FLOAT):
            continue
        source = node.input[0]
        output = node.output[0]
        is_added_by_converter = output not in model_tensors
        if source in float32_source_of:
            replacement_of[output] = float32_source_of[source]
        elif is_added_by_converter:
            first_cast_of.setdefault(source, output)
            replacement_of[output] = first_cast_of[source]
    return replacement_of


def _drop_repeated_casts(graph: GraphProto) -> None:
    """Drop each Cast to a tensor that an earlier node computes; the converter may repeat one."""
    nodes: list[NodeProto] = []
    computed = set[str]()
    for node in graph.node:
        if node.op_type != "Cast" or node.output[0] not in computed:
            computed.update(node.output)
            nodes.append(node)
    replace_nodes(graph, nodes)


def _rename_tensors(graph: GraphProto, new_name_of: Mapping[str, str]) -> None:
    """Rename tensors to the names of other tensors of the graph, which they replace.

    The node that computed such a name before computes `{name}/unused` then, which no node reads.

    Args:
        graph: The graph, which is changed.
        new_name_of: The new names, by the old ones.
    """
    replaced_names = set(new_name_of.values())
    for node in graph.node:
        node.input[:] = [new_name_of.get(name, name) for name in node.input]
        outputs = []
        for name in node.output:
            if name in new_name_of:
                outputs.append(new_name_of[name])
            elif name in replaced_names:
                outputs.append(f"{name}/unused")
            else:
                outputs.append(name)
        node.output[:] = outputs


def _casts_to(node: NodeProto, dtype: int) -> bool:
    """Whether a node converts a tensor to a number type, by ONNX's number of it."""
    return node.op_type == "Cast" and attribute(node, "to", 0) == dtype


def to_int8(
    model: ModelProto,
    ranges: Mapping[str, tuple[float, float]],
    float32_nodes: Collection[str] = (),
) -> ModelProto:
    """Make the convolutions of a float32 graph compute in 8 bits.

    ONNX Runtime quantises: QuantizeLinear and DequantizeLinear around each convolution, weights
    with a scale for each channel, activations with one for the whole tensor (uint8, as suits
    CPUs).

    Args:
        model: The model, which stays as it is.
        ranges: The lowest and highest value of each tensor that the convolutions read or compute,
            by its name.
        float32_nodes: The convolutions that stay in float32, by their outputs.

    Raises:
        ModelError: The graph is too old for it, or has no convolution to quantise.
    """
    if opset(model) < MIN_OPSET:
        raise ModelError(
            f"--int8: the graph is of opset {opset(model)}, and scales for each channel need "
            f"{MIN_OPSET} or later",
            f"export the model again with opset {MIN_OPSET}",
        )
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import QuantType

    numbered = copied(model)
    old_name_of = number_nodes(numbered.graph)  # the quantiser tells nodes apart by their names
    names_to_quantise = []
    for node in numbered.graph.node:
        if node.op_type == "Conv" and node.output[0] not in float32_nodes:
            names_to_quantise.append(node.name)
    if not names_to_quantise:
        raise ModelError("--int8: the graph has no convolution in front of its head")
    tensor_ranges = TensorsData(
        CalibrationMethod.MinMax, _narrowed_for_silu(ranges, numbered.graph)
    )
    quantizer = QDQQuantizer(
        numbered,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=tensor_ranges,
        nodes_to_quantize=names_to_quantise,
        nodes_to_exclude=[],
        op_types_to_quantize=["Conv"],
        extra_options={},
    )
    quantizer.quantize_model()
    quantised: ModelProto = quantizer.model.model
    for node in quantised.graph.node:
        node.name = old_name_of.get(node.name, node.name)
    sort_nodes(quantised.graph)
    return quantised


def _narrowed_for_silu(
    ranges: Mapping[str, tuple[float, float]], graph: GraphProto
) -> dict[str, tuple[Float32, Float32]]:
    """Raise the lowest values of tensors that only go through SiLU, to waste no steps on them.

    SiLU is x times its sigmoid, so its input is read by a Sigmoid and a Mul. Below SILU_FLOOR it is
    0 in 8 bits, whatever its input is.

    Args:
        ranges: The lowest and highest value of each tensor.
        graph: The graph of the tensors.

    Returns:
        The ranges as the quantiser takes them.
    """
    operators_reading = defaultdict(set)
    for node in graph.node:
        for name in node.input:
            operators_reading[name].add(node.op_type)
    narrowed = {}
    for name, (lowest, highest) in ranges.items():
        floor = lowest
        if operators_reading[name] == {"Sigmoid", "Mul"}:
            floor = max(lowest, SILU_FLOOR)
        narrowed[name] = (np.array(floor, np.float32), np.array(highest, np.float32))
    return narrowed
