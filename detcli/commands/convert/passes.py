"""Graph passes: each takes a model and returns a new one.

`cut` and `set_metadata`, which are passes too, are in `detcli.model.editing`. A pass done twice
gives what it gives once; `steps.py` leaves out --half and --int8 where they are done.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from detcli.backend.session import onnxruntime
from detcli.core.errors import ModelError
from detcli.model.editing import (
    add_constant,
    copied,
    drop_unused,
    infer_shapes,
    number_nodes,
    opset,
    renew_shapes,
    replace_nodes,
    sort_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import (
    PASSED_THROUGH,
    GraphIndex,
    attribute,
    bare_transposes,
    known_size,
    shape,
)
from detcli.model.heads.joined import box_rows, score_rows
from detcli.model.inputs import find_inputs

del onnxruntime  # loaded first, so that detcli decides how it is loaded

HINT = "export the model again with that {}, or with dynamic axes"

# Operators at which the network proper ends, seen from the head.
NETWORK = frozenset(
    {"AveragePool", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool"}
)
SHAPE_ONLY = PASSED_THROUGH | {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}

SIZES_ARE_AN_INPUT = 13  # of Split, from this opset on
MIN_OPSET = 13  # a scale for each channel
# Below this, SiLU (x times its sigmoid) is closer to 0 than 0.003, less than 8 bits resolve.
SILU_FLOOR = -8.0


def set_batch(model: ModelProto, size: int | None) -> ModelProto:
    """Make a graph take batches of another size, or with None of any.

    Exporters write the batch into the target shapes of Reshape. There it becomes 0, which means
    "as in the input" and so holds for any batch.
    """
    hint = HINT.format("batch")
    changed = copied(model)
    graph = changed.graph
    image = _picture_input(graph, "batch")
    old = known_size(shape(image)[0])
    if old == size:
        return changed
    if old is not None:
        _free_reshapes(graph, GraphIndex(infer_shapes(model).graph), image.name, old)
    for value in (*GraphIndex(graph).image_inputs(), *graph.output):
        first = value.type.tensor_type.shape.dim[0]
        if size is None:
            first.dim_param = "batch"
        else:
            first.dim_value = size
    try:
        changed = renew_shapes(changed)
    except ValueError as error:
        raise ModelError(f"the graph cannot take another batch: {error}", hint) from error
    for output in changed.graph.output:
        if (found := known_size(shape(output)[0])) != size:
            raise ModelError(f"the graph keeps a batch of {found} at its end", hint)
    return changed


def _picture_input(graph: GraphProto, option: str) -> ValueInfoProto:
    """The input for pictures, which must be `[B, 3, H, W]`."""
    image, _ = find_inputs(GraphIndex(graph))
    if image.channels_last or image.single:
        axes = "[H, W, 3]" if image.channels_last else "[3, H, W]"
        problem = f"--{option}: the graph takes {axes}, not [B, 3, H, W]"
        raise ModelError(problem, HINT.format(option))
    found: ValueInfoProto = next(value for value in graph.input if value.name == image.name)
    return found


def _free_reshapes(graph: GraphProto, index: GraphIndex, image: str, old: int) -> None:
    """Make each Reshape that keeps the batch take it from its input."""
    names = tensor_names(graph)
    moved = index.moved_from(image)
    for node in graph.node:
        target = index.constant(node.input[1]) if node.op_type == "Reshape" else None
        if not target or target[0] != old or node.input[0] not in moved:
            continue
        source = known_size(index.shapes.get(node.input[0], [None])[0])
        flags = [entry for entry in node.attribute if entry.name == "allowzero" and entry.i]
        if source not in {None, old} or (flags and 0 in target):
            continue
        for flag in flags:
            node.attribute.remove(flag)
        name = unused_name(names, f"{node.output[0]}/shape")
        node.input[1] = add_constant(graph, name, np.array([0, *target[1:]], np.int64))


def set_image_size(model: ModelProto, size: int) -> ModelProto:
    """Make a graph that takes pictures of any size take square ones of one size."""
    hint = HINT.format("imgsz")
    changed = copied(model)
    image = _picture_input(changed.graph, "imgsz")
    height, width = (known_size(side) for side in shape(image)[2:])
    if height == width == size:
        return changed
    if None not in (height, width):
        raise ModelError(f"--imgsz: the graph only takes {width}x{height} pictures", hint)
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    try:
        return renew_shapes(changed)
    except ValueError as error:
        raise ModelError(f"the graph cannot take {size}x{size} pictures: {error}", hint) from error


def decode_nodes(graph: GraphProto, boxes: Iterable[str]) -> set[str]:
    """First outputs of the nodes that decode boxes, which may be joined to scores.

    The nodes reach from them back to the last convolutions and products. The convolution after a
    Softmax that takes the mean of a distribution of distances (distribution focal loss) is one.
    """
    index = GraphIndex(graph)
    found, _ = _up_to_network(index, {box_rows(index, tensor) for tensor in boxes})
    return found


def score_convolutions(graph: GraphProto, scores: Iterable[str], depth: int) -> set[str]:
    """First outputs of the last `depth` convolutions of each branch of class scores.

    Where boxes and scores of a stride share a tensor before they are split, the convolutions of the
    boxes are included.
    """
    index = GraphIndex(graph)
    found: set[str] = set()
    wanted = sorted({score_rows(index, tensor) for tensor in scores})
    for _ in range(depth):
        _, nodes = _up_to_network(index, wanted)
        found |= nodes
        wanted = [index.producers[name].input[0] for name in sorted(nodes)]
    return {name for name in found if index.producers[name].op_type == "Conv"}


def first_convolutions(graph: GraphProto, image: str, depth: int) -> set[str]:
    """First outputs of the convolutions that the image reaches through fewer than `depth` others.

    The nodes must be sorted.
    """
    passed, found = {image: 0}, set[str]()
    for node in graph.node:
        least = min((passed[name] for name in node.input if name in passed), default=depth)
        if node.op_type == "Conv":
            if least < depth:
                found.add(node.output[0])
            least += 1
        passed |= dict.fromkeys(node.output, least)
    return found


def _up_to_network(index: GraphIndex, tensors: Iterable[str]) -> tuple[set[str], set[str]]:
    """First outputs of the nodes between the network and the tensors, and of its last nodes."""
    decoding: set[str] = set()
    network: set[str] = set()
    waiting = list(tensors)
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.output[0] in decoding or node.op_type == "Shape":
            continue
        if node.op_type in NETWORK:
            before = index.producer(index.behind(node.input[0], SHAPE_ONLY))
            if before is None or before.op_type != "Softmax":
                network.add(node.output[0])
                continue
        decoding.add(node.output[0])
        waiting.extend(node.input)
    return decoding, network


def guard_transposes(model: ModelProto) -> ModelProto:
    """Insert a Concat after each Transpose that feeds an output.

    It copies the tensor, so an engine must lay it out as the Transpose says and cannot return
    the tensor before it. A Concat of one input would do for an engine, but simplifiers remove
    it like an Identity (both onnxsim 0.8 and onnxslim 0.1), and ONNX Runtime moves a Transpose
    through it where that pays. So a Split divides the last axis (into its first entry and the rest)
    and the Concat joins the two again, which all of them leave alone.
    """
    guarded = copied(model)
    graph = guarded.graph
    bare = {node.output[0] for node in bare_transposes(graph)}
    shapes = GraphIndex(infer_shapes(model).graph).shapes
    names = tensor_names(graph)
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        output = node.output[0]
        if output not in bare:
            continue
        size = known_size((shapes.get(output) or [None])[-1])
        if size is None or size < 2:
            raise ModelError(
                f"--guard-transpose: the last axis of {output} has no known size above 1",
                "export the model with a fixed number of classes",
            )
        moved, *parts = (
            unused_name(names, f"{output}/{part}") for part in ("transposed", "first", "rest")
        )
        node.output[0] = moved
        sizes = [1, size - 1]
        if opset(model) < SIZES_ARE_AN_INPUT:
            nodes.append(helper.make_node("Split", [moved], parts, axis=-1, split=sizes))
        else:
            name = unused_name(names, f"{output}/sizes")
            constant = add_constant(graph, name, np.array(sizes, np.int64))
            nodes.append(helper.make_node("Split", [moved, constant], parts, axis=-1))
        nodes.append(helper.make_node("Concat", parts, [output], axis=-1))
    replace_nodes(graph, nodes)
    return guarded


def to_half(
    model: ModelProto, exact: Collection[str] = (), *, keep_inputs_and_outputs: bool = False
) -> ModelProto:
    """Compute a float32 graph in float16, except for the nodes with these first outputs.

    ONNX Runtime converts (`onnxruntime.transformers.float16`), and its result is tidied up: a
    float32 tensor between two exact nodes does not pass through float16, where it would become
    infinite after all, and no tensor is cast twice.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half: ModelProto = infer_shapes(model)
    names = number_nodes(half.graph)
    blocked = [node.name for node in half.graph.node if node.output[0] in exact]
    half = convert_float_to_float16(
        half,
        keep_io_types=keep_inputs_and_outputs,
        disable_shape_infer=True,
        node_block_list=blocked,
    )
    for node in half.graph.node:
        node.name = names.get(node.name, node.name)
    _tidy_casts(half.graph, tensor_names(model.graph))
    sort_nodes(half.graph)
    del half.graph.value_info[:]  # the types of tensors have changed
    return infer_shapes(half)


def _tidy_casts(graph: GraphProto, known: set[str]) -> None:
    """Bypass casts to float16 and back, and keep one of equal casts.

    The converter renames the output of an exact node and gives the original name, which is among
    the `known`, to its cast to float16; each exact reader gets a cast back, under a new name.
    """
    nodes, made = list[NodeProto](), set[str]()
    for node in graph.node:
        if node.op_type != "Cast" or node.output[0] not in made:
            made.update(node.output)
            nodes.append(node)
    replace_nodes(graph, nodes)
    narrowed = {
        node.output[0]: node.input[0]
        for node in graph.node
        if _casts_to(node, TensorProto.FLOAT16) and node.input[0] not in known
    }
    instead: dict[str, str] = {}
    cast: dict[str, str] = {}
    for node in graph.node:
        if not _casts_to(node, TensorProto.FLOAT):
            continue
        source, wide = node.input[0], node.output[0]
        if source in narrowed:
            instead[wide] = narrowed[source]
        elif wide not in known:  # not a cast of the model itself
            instead[wide] = cast.setdefault(source, wide)
    for node in graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
    outputs = {output.name for output in graph.output}
    _rename(graph, {instead[name]: name for name in outputs & instead.keys()})
    drop_unused(graph)
    left = tensor_names(graph)
    # Where no float16 reader is left, a tensor gets its name back.
    _rename(graph, {wide: name for name, wide in narrowed.items() if name not in left})


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give each tensor the name of the tensor that it replaces."""
    replaced = {*names.values()}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [
            names.get(name, f"{name}/unused" if name in replaced else name) for name in node.output
        ]


def _casts_to(node: NodeProto, dtype: int) -> bool:
    return node.op_type == "Cast" and attribute(node, "to", 0) == dtype


def to_int8(
    model: ModelProto, ranges: Mapping[str, tuple[float, float]], exact: Collection[str] = ()
) -> ModelProto:
    """Compute the convolutions of a float32 graph in 8 bits, but for those with these outputs.

    ONNX Runtime quantises: QuantizeLinear and DequantizeLinear around each convolution, weights
    with a scale for each channel, activations with one for the whole tensor (uint8, as suits
    CPUs). `ranges` has the lowest and highest value of each tensor that they read or make.
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

    given = copied(model)
    names = number_nodes(given.graph)
    convolutions = [node for node in given.graph.node if node.op_type == "Conv"]
    chosen = [node.name for node in convolutions if node.output[0] not in exact]
    if not chosen:
        raise ModelError("--int8: the graph has no convolution in front of its head")
    readers = defaultdict(set)
    for node in given.graph.node:
        for name in node.input:
            readers[name].add(node.op_type)
    values = {}
    for name, (low, high) in ranges.items():
        least = max(low, SILU_FLOOR) if readers[name] == {"Sigmoid", "Mul"} else low
        values[name] = (np.array(least, np.float32), np.array(high, np.float32))
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
