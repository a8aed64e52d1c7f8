"""Graph passes: each takes a model and returns a new one.

`cut` and `set_metadata`, which are passes too, are in `detcli.model.editing`, and those that change
the type of the numbers in `number_types.py`. A pass done twice gives what it gives once; `steps.py`
leaves out --half and --int8 where they are done.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from detcli.backend.session import onnxruntime
from detcli.core.errors import ModelError
from detcli.model.editing import (
    add_constant,
    copied,
    infer_shapes,
    opset,
    renew_shapes,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import (
    PASSED_THROUGH,
    GraphIndex,
    bare_transposes,
    known_size,
    shape,
)
from detcli.model.heads import Unrecognised
from detcli.model.heads.joined import box_tensor_of, score_tensor_of
from detcli.model.inputs import find_inputs

del onnxruntime  # loaded first, so that detcli decides how it is loaded

EXPORT_AGAIN = "export the model again with that {}, or with dynamic axes"
"""The hint where a graph does not allow what an option asks for, such as a different batch."""

# Operators that compute with weights, at which the network proper ends, seen from the head.
NETWORK = frozenset(
    {"AveragePool", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool"}
)
SHAPE_ONLY = PASSED_THROUGH | {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}

SIZES_ARE_AN_INPUT = 13  # the opset since which this holds for Split


def set_batch(model: ModelProto, size: int | None) -> ModelProto:
    """Make a graph take batches of a different size.

    Exporters write the batch into the target shapes of Reshape. There it becomes 0, which means
    "as in the input" and so holds for any batch.

    Args:
        model: A model that takes images `[B, 3, H, W]`.
        size: The number of images in a batch; None for any.

    Raises:
        ModelError: The graph cannot take another batch.
    """
    changed = copied(model)
    graph = changed.graph
    image_input = _image_input(graph, "batch")
    old_size = known_size(shape(image_input)[0])
    if old_size == size:
        return changed

    if old_size is not None:
        shaped_index = GraphIndex(infer_shapes(model).graph)
        _free_reshapes(graph, shaped_index, image_input.name, old_size)
    _declare_batch(graph, size)
    try:
        changed = renew_shapes(changed)
    except ValueError as error:
        problem = f"--batch: the graph takes no other batch: {error}"
        raise ModelError(problem, EXPORT_AGAIN.format("batch")) from error
    _require_batch_of_outputs(changed.graph, size)
    return changed


def _require_batch_of_outputs(graph: GraphProto, size: int | None) -> None:
    """Check that all outputs of a graph have the batch that was set at its input.

    They do not if a node other than a Reshape fixes the size of the batch.

    Args:
        graph: The graph, with shapes that were inferred for the new batch.
        size: The number of images in a batch; None for any.

    Raises:
        ModelError: An output has a different batch, or a shape without one.
    """
    hint = EXPORT_AGAIN.format("batch")
    for output in graph.output:
        output_dims = shape(output)
        if not output_dims:
            problem = f"--batch: the graph's output {output.name} has no axes, or an unknown shape"
            raise ModelError(problem, hint)
        output_size = known_size(output_dims[0])
        if output_size != size:
            problem = f"--batch: the graph keeps a batch of {output_size} at its end"
            raise ModelError(problem, hint)


def _declare_batch(graph: GraphProto, size: int | None) -> None:
    """Write the size of a batch into the shapes that a graph declares for images and outputs.

    An output without axes, which is a single number or has no declared shape, is left alone.

    Args:
        graph: The graph, which is changed.
        size: The number of images; None for any.
    """
    for value in list(GraphIndex(graph).image_inputs()) + list(graph.output):
        if not value.type.tensor_type.shape.dim:
            continue
        batch_dim = value.type.tensor_type.shape.dim[0]
        if size is None:
            batch_dim.dim_param = "batch"
        else:
            batch_dim.dim_value = size


def _image_input(graph: GraphProto, option: str) -> ValueInfoProto:
    """Find the input of a graph that takes images, and return its declaration in the graph.

    Args:
        graph: The graph.
        option: The option of `convert` that needs it, for the error.

    Raises:
        ModelError: The input is not `[B, 3, H, W]`.
    """
    image_input, _ = find_inputs(GraphIndex(graph))
    takes_single_image = image_input.single  # it has no axis for the batch
    if image_input.channels_last or takes_single_image:
        axes = "[3, H, W]"
        if image_input.channels_last:
            axes = "[H, W, 3]"
        problem = f"--{option}: the graph takes {axes}, not [B, 3, H, W]"
        raise ModelError(problem, EXPORT_AGAIN.format(option))

    declaration: ValueInfoProto = next(
        value for value in graph.input if value.name == image_input.name
    )
    return declaration


def _free_reshapes(graph: GraphProto, index: GraphIndex, image: str, batch: int) -> None:
    """Make the Reshape nodes of a graph work for any batch, where they are written for one size.

    A target shape that begins with the size of the batch gets a 0 in its place, which means "as in
    the input": [1, 84, 8400] becomes [0, 84, 8400]. A Reshape stays as it is if its tensor does not
    depend on the image, or if the first axis of its input is not the batch.

    Args:
        graph: The graph, which is changed.
        index: An index of the same graph with inferred shapes.
        image: The name of the input for images.
        batch: The size of the batch that the graph is written for.
    """
    names = tensor_names(graph)
    tensors_of_image = index.tensors_computed_from(image)
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[0] not in tensors_of_image:
            continue
        target_shape = index.constant(node.input[1])
        if not target_shape or not _begins_with_batch(index, node.input[0], target_shape, batch):
            continue

        # With `allowzero` set to 1, a 0 in the target shape does not mean "as in the input", but a
        # size of 0. If the shape has such a size, the attribute has to stay.
        if _allows_zero(node):
            if 0 in target_shape:
                continue
            _remove_attribute(node, "allowzero")

        name = unused_name(names, f"{node.output[0]}/shape")
        any_batch_shape = np.array([0, *target_shape[1:]], np.int64)
        node.input[1] = add_constant(graph, name, any_batch_shape)


def _allows_zero(node: NodeProto) -> bool:
    """Whether a 0 in the target shape of a Reshape means a size of 0, by its `allowzero`."""
    return any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute)


def _remove_attribute(node: NodeProto, name: str) -> None:
    """Remove an attribute of a node, in place."""
    for attribute in list(node.attribute):
        if attribute.name == name:
            node.attribute.remove(attribute)


def _begins_with_batch(
    index: GraphIndex, tensor: str, target_shape: Sequence[float], batch: int
) -> bool:
    """Return whether the first axis of a tensor is the batch, before a Reshape and after it.

    A first axis of unknown size counts as the batch.

    Args:
        index: The graph, with inferred shapes.
        tensor: The input of the Reshape.
        target_shape: The shape that the Reshape gives the tensor.
        batch: The size of the batch.
    """
    return target_shape[0] == batch and index.size(tensor, axis=0) in {None, batch}


def set_image_size(model: ModelProto, size: int) -> ModelProto:
    """Make a graph that takes images of any size take square ones of one size.

    Args:
        model: A model that takes images `[B, 3, H, W]`.
        size: Height and width in pixels.

    Raises:
        ModelError: The graph cannot take that size.
    """
    resized = copied(model)
    image_input = _image_input(resized.graph, "imgsz")
    height_dim, width_dim = shape(image_input)[2:]
    height = known_size(height_dim)
    width = known_size(width_dim)
    if height == width == size:
        return resized

    hint = EXPORT_AGAIN.format("imgsz")
    if height is not None and width is not None:
        raise ModelError(f"--imgsz: the graph only takes {width}x{height} images", hint)

    for dim in image_input.type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    try:
        return renew_shapes(resized)
    except ValueError as error:
        problem = f"--imgsz: the graph cannot take {size}x{size} images: {error}"
        raise ModelError(problem, hint) from error


def decode_nodes(graph: GraphProto, boxes: Iterable[str]) -> set[str]:
    """Find the nodes that decode boxes: those between the network proper and the box tensors.

    The network proper ends with the last convolutions and matrix products before the boxes. The
    convolution after a Softmax is not one of these: it takes the mean of a distribution of
    distances (distribution focal loss), and so decodes.

    Args:
        graph: The graph.
        boxes: The tensors of boxes, which may be joined to the scores.

    Returns:
        The first output of each node.
    """
    index = GraphIndex(graph)
    box_tensors = {_boxes_before_join(index, name) for name in boxes}
    return _find_end_of_network(index, box_tensors).after_network


def _boxes_before_join(index: GraphIndex, tensor: str) -> str:
    """Find the tensor of boxes that is joined with scores in another.

    Returns:
        Its name; the tensor itself if it joins something else, such as the raw boxes of two scales.
    """
    try:
        return box_tensor_of(index, tensor)
    except Unrecognised:
        return tensor


def score_convolutions(graph: GraphProto, scores: Iterable[str], depth: int) -> set[str]:
    """Find the last convolutions that compute the class scores.

    A detector has a branch of convolutions for the scores of each stride. Each branch is followed
    from the scores towards the image, from one convolution to the one before it. Where boxes and
    scores of a stride share a tensor before they are split, the convolutions of the boxes are
    included.

    Args:
        graph: The graph.
        scores: The tensors of class scores, which may be joined to the boxes.
        depth: How many convolutions of each branch to find, counted from its end.

    Returns:
        The first output of each convolution.
    """
    index = GraphIndex(graph)
    start_tensors = {score_tensor_of(index, tensor) for tensor in scores}
    convolutions: set[str] = set()
    for _ in range(depth):
        # From the scores back to the nearest nodes that compute with weights. These are
        # convolutions, and also poolings and matrix products, which count towards the depth but are
        # not returned.
        weighted_outputs = _find_end_of_network(index, start_tensors).last_of_network
        start_tensors = set()
        for output in weighted_outputs:
            node = index.producers[output]
            if node.op_type == "Conv":
                convolutions.add(output)
            start_tensors.add(node.input[0])  # The next round goes on from there.
    return convolutions


def first_convolutions(graph: GraphProto, image: str, depth: int) -> set[str]:
    """Find the convolutions at the beginning of a network.

    Args:
        graph: The graph, whose nodes must be sorted.
        image: The name of the input for images.
        depth: How far to go: a convolution is found if the image reaches it through fewer than
            this many others.

    Returns:
        The first output of each convolution.
    """
    # How many convolutions are on the shortest path from the image to each tensor; tensors that do
    # not depend on the image have none.
    distances = {image: 0}
    first_convolution_outputs: set[str] = set()
    for node in graph.node:
        input_distances = [distances[name] for name in node.input if name in distances]
        if not input_distances:
            continue
        distance = min(input_distances)
        if node.op_type == "Conv":
            if distance < depth:
                first_convolution_outputs.add(node.output[0])
            distance += 1
        for output in node.output:
            distances[output] = distance
    return first_convolution_outputs


class _EndOfNetwork(NamedTuple):
    """The nodes around the end of the network proper, each by the name of its first output."""

    last_of_network: set[str]  # the last nodes with weights
    after_network: set[str]  # the nodes that run after these, to decode boxes or activate scores


def _find_end_of_network(index: GraphIndex, tensors: Iterable[str]) -> _EndOfNetwork:
    """Walk back from the given tensors towards the image, to the last nodes with weights.

    These are convolutions, matrix products and poolings: the end of the network proper. The nodes
    that run after them, which the walk meets first, decode boxes or activate scores. A convolution
    after a Softmax decodes boxes as well (see `decode_nodes`), so the walk does not end there.

    Args:
        index: The graph.
        tensors: The names of the tensors to begin at.
    """
    last_of_network: set[str] = set()
    after_network: set[str] = set()
    tensors_to_visit = list(tensors)
    while tensors_to_visit:
        node = index.producers.get(tensors_to_visit.pop())
        if node is None or node.output[0] in after_network or node.op_type == "Shape":
            continue
        if node.op_type in NETWORK and not _follows_softmax(index, node):
            last_of_network.add(node.output[0])
        else:
            after_network.add(node.output[0])
            tensors_to_visit.extend(node.input)
    return _EndOfNetwork(last_of_network, after_network)


def _follows_softmax(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node reads the result of a Softmax, which may have been reshaped in between."""
    unshaped_input = index.before(node.input[0], SHAPE_ONLY)
    producer = index.producer(unshaped_input)
    return producer is not None and producer.op_type == "Softmax"


def guard_transposes(model: ModelProto) -> ModelProto:
    """Insert a Split and a Concat after each Transpose that feeds an output, to copy the tensor.

    An engine may treat a Transpose at the end as a mere change of strides, and return the tensor
    before it. A copy has to be laid out as the Transpose says.

    The copy takes two nodes, as a single one would be lost: simplifiers (onnxsim 0.8 and onnxslim
    0.1) remove a Concat with one input like an Identity, and ONNX Runtime moves a Transpose through
    it where that pays. All of them leave a Split and a Concat alone. The Split divides the tensor
    along its last axis, into the first entry and the rest, and the Concat joins both again.

    Raises:
        ModelError: The size of a last axis is not known, or is 1.
    """
    guarded = copied(model)
    graph = guarded.graph
    bare_outputs = {node.output[0] for node in bare_transposes(graph)}
    shapes = GraphIndex(infer_shapes(model).graph).shapes
    names = tensor_names(graph)

    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        output = node.output[0]
        if output not in bare_outputs:
            continue

        last_size = None
        if shapes.get(output):
            last_size = known_size(shapes[output][-1])
        if last_size is None or last_size < 2:
            raise ModelError(
                f"--guard-transpose: the last axis of {output} has no known size above 1",
                "export the model with a fixed number of classes",
            )

        # An output has to keep its name. So the Transpose computes a new tensor, and the Concat
        # gets the name.
        transposed = unused_name(names, f"{output}/transposed")
        node.output[0] = transposed
        split_and_concat = _split_and_join(
            guarded, source=transposed, output=output, last_size=last_size, names=names
        )
        nodes.extend(split_and_concat)
    replace_nodes(graph, nodes)
    return guarded


def _split_and_join(
    model: ModelProto, *, source: str, output: str, last_size: int, names: set[str]
) -> list[NodeProto]:
    """Make nodes that copy a tensor: a Split into two along the last axis, and a Concat of both.

    `guard_transposes` says what the copy is for. The caller adds the nodes to the model. This adds
    their new tensors to `names`. From opset 13, it also adds a constant to the model, which Split
    reads the sizes from; before, the sizes are an attribute.

    Args:
        model: The model of the tensor.
        source: The tensor to copy.
        output: The name of the copy.
        last_size: The size of the tensor's last axis, 2 or more.
        names: The names of all tensors of the model.
    """
    parts = [unused_name(names, f"{output}/first"), unused_name(names, f"{output}/rest")]
    sizes = [1, last_size - 1]
    if opset(model) < SIZES_ARE_AN_INPUT:
        split = helper.make_node("Split", [source], parts, axis=-1, split=sizes)
    else:
        sizes_name = unused_name(names, f"{output}/sizes")
        add_constant(model.graph, sizes_name, np.array(sizes, np.int64))
        split = helper.make_node("Split", [source, sizes_name], parts, axis=-1)
    concat = helper.make_node("Concat", parts, [output], axis=-1)
    return [split, concat]
