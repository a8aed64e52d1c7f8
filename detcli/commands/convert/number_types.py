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

    ONNX Runtime's converter (`onnxruntime.transformers.float16`) does the work. It also casts the
    tensor between two nodes that stay in float32 to float16 and back, where large values would
    become infinite, and casts some tensors twice. Such casts are removed.

    Args:
        model: The model, which stays as it is.
        float32_nodes: The nodes that stay in float32, by the names of their first outputs.
        keep_inputs_and_outputs: Whether the inputs and outputs of the graph stay float32.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    numbered = infer_shapes(model)
    if numbered is model:  # its shapes contradict each other
        numbered = copied(model)
    old_name_of = number_nodes(numbered.graph)  # the converter tells nodes apart by their names
    names_of_float32_nodes = []
    for node in numbered.graph.node:
        if node.output[0] in float32_nodes:
            names_of_float32_nodes.append(node.name)

    half: ModelProto = convert_float_to_float16(
        numbered,
        keep_io_types=keep_inputs_and_outputs,
        disable_shape_infer=True,
        node_block_list=names_of_float32_nodes,
    )
    for node in half.graph.node:
        node.name = old_name_of.get(node.name, node.name)  # the converter has added some nodes

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

    This function restores the graph from before. If other nodes read `a` in float16, it only
    removes the second cast:

        result:  node -> new_1 -> node
                         new_1 -> Cast to float16 -> a -> other nodes

    Args:
        graph: The graph that the converter returned, which is changed.
        model_tensors: Names of all tensors before the conversion.
    """
    _drop_repeated_casts(graph)

    # Let nodes read the float32 tensors from before the casts. In the example, the casts to float16
    # are {"a": "new_1"}, and the replacements {"new_2": "new_1"}.
    float32_source_of = _sources_of_new_casts(graph, model_tensors)
    replacement_of = _replacements_of_casts(graph, model_tensors, float32_source_of)
    for node in graph.node:
        node.input[:] = [replacement_of.get(name, name) for name in node.input]

    # An output of the graph must keep its name. So the tensor that replaces it gets that name.
    graph_outputs = {value.name for value in graph.output}
    output_name_of = {
        replacement: name for name, replacement in replacement_of.items() if name in graph_outputs
    }
    _rename_tensors(graph, output_name_of)

    # Drop the casts that no node reads any more.
    drop_unused(graph)

    # If nothing reads `a` in float16, the cast that computed it is gone. Then `new_1` gets its
    # original name `a` back.
    remaining_tensors = tensor_names(graph)
    original_name_of = {
        float32_source: original_name
        for original_name, float32_source in float32_source_of.items()
        if original_name not in remaining_tensors
    }
    _rename_tensors(graph, original_name_of)


def _sources_of_new_casts(graph: GraphProto, model_tensors: set[str]) -> dict[str, str]:
    """Find the casts to float16 that the converter has put after nodes that stay in float32.

    Args:
        graph: The graph that the converter returned.
        model_tensors: Names of all tensors before the conversion.

    Returns:
        The name of the float32 tensor that is cast, by the name of the cast's output. The output
        has the name that the tensor had before the conversion.
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

    There are two cases; other casts are the model's, and stay:

    - A tensor was cast from float32 to float16 and back. Nodes can read the tensor before the
      casts.
    - The converter has added several casts of one float16 tensor. Nodes can read the output of the
      first cast.

    Args:
        graph: The graph that ONNX Runtime's converter returned.
        model_tensors: Names of all tensors before the conversion.
        float32_source_of: The float32 input of each new cast to float16, by the cast's output.

    Returns:
        The tensor to read, by the output of the cast that it replaces. The output of a first cast
        is replaced by itself.
    """
    replacement_of: dict[str, str] = {}
    first_output_of: dict[str, str] = {}  # by a float16 tensor, the output of its first cast
    for node in graph.node:
        if not _casts_to(node, TensorProto.FLOAT):
            continue
        cast_tensor = node.input[0]
        output = node.output[0]
        is_added_by_converter = output not in model_tensors
        if cast_tensor in float32_source_of:
            replacement_of[output] = float32_source_of[cast_tensor]
        elif is_added_by_converter:
            first_output_of.setdefault(cast_tensor, output)
            replacement_of[output] = first_output_of[cast_tensor]
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
    """Rename tensors, each to the name of another tensor of the graph that it replaces.

    If a node still computes the tensor that is replaced, its output is renamed to `{name}/unused`,
    which no node reads.

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
    """Whether a node is a Cast to a number type, such as `TensorProto.FLOAT`."""
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
    """Narrow the ranges of tensors that only SiLU reads, so that 8 bits resolve them more finely.

    The 256 values of 8 bits are spread over the range of a tensor. SiLU (x times the sigmoid of x)
    gives 0 in 8 bits for any input below SILU_FLOOR, so values of its input that differ only there
    would be wasted. In a graph, SiLU is a Sigmoid and a Mul that both read x.

    Args:
        ranges: The lowest and highest value of each tensor.
        graph: The graph of the tensors.

    Returns:
        The lowest and highest value of each tensor, as arrays without axes, which the quantiser
        takes.
    """
    reading_operators = defaultdict(set)  # the types of the nodes that read a tensor, by its name
    for node in graph.node:
        for name in node.input:
            reading_operators[name].add(node.op_type)

    narrowed_ranges = {}
    for name, (lowest, highest) in ranges.items():
        narrowed_lowest = lowest
        if reading_operators[name] == {"Sigmoid", "Mul"}:
            narrowed_lowest = max(lowest, SILU_FLOOR)
        narrowed_ranges[name] = (
            np.array(narrowed_lowest, np.float32),
            np.array(highest, np.float32),
        )
    return narrowed_ranges
