"""Converts a graph pass by pass, in a fixed order."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, helper

from detcli.backend import open_tensors
from detcli.backend.preprocess import fit_letterbox, to_batch
from detcli.backend.protocol import RUN_TIMEOUT_S, run_with_timeout
from detcli.commands.convert import passes
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.selection import append_selection
from detcli.core import frozen
from detcli.core.errors import ModelError, SourceError, UsageError
from detcli.core.text import pluralize
from detcli.data.geometry import Picture
from detcli.model.contract import Contract, Layout, read_names
from detcli.model.editing import copied, cut, infer_shapes, names_entry, set_metadata
from detcli.model.graph import GraphIndex, bare_transposes, is_half, is_quantised, shape
from detcli.model.inputs import find_inputs
from detcli.model.metadata import FAMILY_KEY, recommended
from detcli.model.preprocessing import METADATA_KEY, written
from detcli.model.recognise import Reading, read_graph

MAX_LISTED = 3

MARGIN = 4.0  # factor by which the values of other pictures may be larger
MAX_HALF = 65504.0 / MARGIN
# Operators that square their input internally, where no tensor shows an overflow.
SQUARING = frozenset(
    "GroupNormalization InstanceNormalization LayerNormalization LpNormalization ReduceL2 "
    "ReduceSumSquare RMSNormalization SimplifiedLayerNormalization".split()
)

# For each, see docs/convert.md.
# Share of the pictures whose lowest and whose highest value an int8 model may cut off: for the sake
# of few, the steps between all values would widen.
OUTLYING = 0.1
# Convolutions that stay in float32 at the end of each branch of class scores in an int8 model: they
# are little work and cause most of the error of the scores.
FLOAT_DEPTH = 3
# And at its beginning: their values range furthest, and all others inherit their errors.
FLOAT_START = 2

Tensor = npt.NDArray[Any]
Ranges = dict[str, tuple[float, float]]  # the lowest and the highest value of tensors
Pictures = Callable[[], Iterable[Picture]]  # the pictures to calibrate on, from the start


@frozen
class Step:
    """One pass over the graph."""

    name: str  # the option that asked for it
    changed: bool
    finding: str  # what it did, or why it changed nothing
    nodes: int  # in the graph after it


class Steps:
    """Converts a model, pass by pass."""

    _known: ModelProto  # the model with its shapes, and what it is, before the pass that runs
    _reading: Reading

    def __init__(
        self, model: ModelProto, title: str, options: ConversionOptions, pictures: Pictures
    ) -> None:
        self.model, self.done = model, list[Step]()  # after the passes so far, and these
        self._title, self._options, self._pictures = title, options, pictures

    def run(self) -> None:
        """Run the passes that the options ask for."""
        wanted, settings = self._options, self._options.config.settings
        steps = [
            (settings.names, "names", self._names),
            (wanted.entries, "metadata", self._metadata),
            (wanted.cut, "cut", self._cut),
            (settings.imgsz, "imgsz", self._image_size),
            (wanted.batch, "batch", self._batch),
            (wanted.half, "half", self._half),
            (wanted.int8, "int8", self._int8),
            (wanted.end_to_end, "end-to-end", self._selection),
            (wanted.guard_transpose, "guard-transpose", self._guard),
        ]
        for asked_for, name, step in steps:
            if not asked_for:
                continue
            self._known = infer_shapes(self.model)
            self._reading = read_graph(self._known, self._title, settings.box_format)
            converted, finding = step()
            heads = self._reading.adaptation.head.tensors
            kept = {*heads, *(value.name for value in self.model.graph.value_info)}
            values = [value for value in converted.graph.value_info if value.name in kept]
            del converted.graph.value_info[:]
            converted.graph.value_info.extend(values)
            changed = _essence(converted) != _essence(self.model)
            if changed:
                self.model = converted
            self.done.append(Step(name, changed, finding, len(self.model.graph.node)))

    def _names(self) -> tuple[ModelProto, str]:
        path = Path(self._options.config.settings.names or "")
        names = self._reading.contract.with_names(read_names(path), str(path)).names
        return set_metadata(self.model, names_entry(names)), f"{len(names)} names from {path}"

    def _metadata(self) -> tuple[ModelProto, str]:
        entries, contract = self._options.entries, self._reading.contract
        kept = {key: value for key, value in entries.items() if value}
        for ignored in recommended(kept, contract.nms, contract.names)[-1]:
            said = ignored.replace("its metadata", "--metadata").removesuffix(", so it is ignored")
            raise UsageError(said, "leave the entry out, or docs/models.md says what it may be")
        return set_metadata(self.model, entries), ", ".join(entries)

    def _image_size(self) -> tuple[ModelProto, str]:
        size, contract = self._options.config.settings.imgsz or 0, self._reading.contract
        replace(contract, input_size=None).input_shape(size)  # raises unless the stride divides it
        was = contract.input_size
        finding = f"{size}x{size}, was {f'{was[1]}x{was[0]}' if was else 'dynamic'}"
        return self._updated(
            passes.set_image_size(self.model, size), "imgsz", str([size, size])
        ), finding

    def _batch(self) -> tuple[ModelProto, str]:
        contract = self._reading.contract
        size = self._options.batch if isinstance(self._options.batch, int) else None
        if contract.layout is Layout.ROWS:
            raise ModelError(
                "--batch: the graph selects its detections itself, for the batch it was exported "
                "with",
                "export the model again with that batch",
            )
        finding = f"{size or 'dynamic'}, was {contract.batch or 'dynamic'}"
        return self._updated(passes.set_batch(self.model, size), "batch", str(size or 1)), finding

    def _updated(self, model: ModelProto, key: str, value: str) -> ModelProto:
        """A model with another value of an entry of the metadata, if there is one."""
        known = {entry.key for entry in self.model.metadata_props}
        return set_metadata(model, {key: value}) if key in known else model

    def _cut(self) -> tuple[ModelProto, str]:
        if self._reading.contract.layout is Layout.ROWS:
            raise ModelError(
                "--cut: the graph selects its detections itself, and what it selects from is not "
                "clear",
                "leave it out",
            )
        heads = self._reading.adaptation.head.tensors
        body = cut(self._known, *heads)
        dropped = len(self._known.graph.node) - len(body.graph.node)
        return body, f"{dropped} nodes after {' and '.join(heads)} dropped"

    def _half(self) -> tuple[ModelProto, str]:
        known = self._known
        if is_half(known):
            return self.model, "already in float16"
        if is_quantised(known.graph):
            raise ModelError(
                f"--half: {self._title} is quantised", "convert the float32 model it was made from"
            )
        ranges, seen = self._observed(float_tensors(known))
        for tensor in known.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and 0 not in tensor.dims:
                values = onnx.numpy_helper.to_array(tensor)
                ranges[tensor.name] = float(values.min()), float(values.max())
        near, squared = (
            {name for name, (low, high) in ranges.items() if not -most <= low <= high <= most}
            for most in (MAX_HALF, MAX_HALF**0.5)
        )
        head = self._reading.adaptation.head
        decode = passes.decode_nodes(known.graph, (piece.tensor for piece in head.boxes))
        index = GraphIndex(known.graph)
        decode.update(*(index.moved_from(tensor) for tensor in head.tensors))
        overflowing = {
            node.output[0]
            for node in known.graph.node
            if not near.isdisjoint((*node.input, *node.output))
            or (node.op_type in SQUARING and not squared.isdisjoint(node.input[:1]))
        }
        exact = decode | overflowing
        keep_io = self._options.keep_io
        run = partial(passes.to_half, self.model, exact, keep_inputs_and_outputs=keep_io)
        half = run_with_timeout(RUN_TIMEOUT_S, self._title, run)
        kept = sum(node.output[0] in exact for node in known.graph.node)
        finding = f"{kept} nodes stay in float32: the box decoding and what follows it"
        if overflowing:
            some = ", ".join(sorted(overflowing)[:MAX_LISTED])
            finding += f"; {len(overflowing)} that might overflow, such as {some}"
        return half, f"{finding} (calibrated on {seen})"

    def _int8(self) -> tuple[ModelProto, str]:
        graph, head = self._known.graph, self._reading.adaptation.head
        if is_quantised(graph):
            return self.model, "already quantised"
        if is_half(self._known):
            raise ModelError(
                f"--int8: {self._title} is in float16", "convert the float32 model it was made from"
            )
        exact = passes.decode_nodes(graph, (piece.tensor for piece in head.boxes))
        exact |= passes.score_convolutions(
            graph, (piece.tensor for piece in head.scores), FLOAT_DEPTH
        )
        convolutions = [node for node in graph.node if node.op_type == "Conv"]
        image, _ = find_inputs(GraphIndex(graph))
        first = passes.first_convolutions(graph, image.name, FLOAT_START)
        if not {node.output[0] for node in convolutions} <= exact | first:  # a tiny network
            exact |= first
        chosen = [node for node in convolutions if node.output[0] not in exact]
        tensors = {name for node in chosen for name in (node.input[0], node.output[0])}
        ranges, seen = self._observed(sorted(tensors), OUTLYING)
        run = partial(passes.to_int8, self.model, ranges, exact)
        quantised = run_with_timeout(RUN_TIMEOUT_S, self._title, run)
        return quantised, f"{len(chosen)} of {len(convolutions)} convolutions, calibrated on {seen}"

    def _observed(self, tensors: list[str], outlying: float = 0.0) -> tuple[Ranges, str]:
        """The ranges of tensors over the pictures, and how many these are."""
        if not tensors:
            return {}, pluralize(0, "picture")  # a network that returns nothing cannot run
        batches = (tensor_of(one, self._reading.contract) for one in self._pictures())
        network = self._reading.with_image_input(self._known)
        ranges, seen = observe(network, tensors, batches, self._title, outlying)
        if not seen:
            raise SourceError(
                "no picture to calibrate on", "name a folder of pictures with --calibrate"
            )
        return ranges, pluralize(seen, "picture")

    def _selection(self) -> tuple[ModelProto, str]:
        reading, rows = self._reading, self._options.max_det
        contract, adapted = reading.contract, reading.adaptation.is_needed
        whole = not adapted or contract.layout is Layout.ROWS
        body = self._known if whole else reading.body(self._known)
        ended = append_selection(body, contract, min(rows, contract.max_detections or rows))
        if adapted:  # the rows show neither the family nor how pictures are prepared
            entries = {FAMILY_KEY: contract.family, METADATA_KEY: written(contract.preprocessing)}
            ended = set_metadata(ended, entries)
        return ended, f"ends in [{', '.join(map(str, shape(ended.graph.output[0])))}]"

    def _guard(self) -> tuple[ModelProto, str]:
        bare = len(bare_transposes(self.model.graph))
        return passes.guard_transposes(self.model), f"{bare} outputs come directly from a Transpose"


def tensor_of(picture: Picture, contract: Contract) -> Tensor:
    """A picture as an input of the network, repeated to fill the batch: `(B, 3, H, W)`."""
    preprocessing = contract.preprocessing
    letterbox = fit_letterbox(picture.size, contract.input_shape(), preprocessing)
    batch = contract.batch or 1
    return to_batch(picture, letterbox, preprocessing, contract.input_dtype, batch)


def float_tensors(model: ModelProto) -> list[str]:
    """The float32 tensors that a graph computes, in order; shapes must be inferred."""
    types = GraphIndex(model.graph).types
    made = [name for node in model.graph.node for name in node.output]
    return [name for name in made if types.get(name) == TensorProto.FLOAT]


def observe(
    model: ModelProto,
    tensors: Collection[str],
    batches: Iterable[Tensor],
    title: str,
    outlying: float = 0.0,
) -> tuple[Ranges, int]:
    """Run a network and return the range of each tensor, and the number of batches.

    The graph itself reduces each tensor to its lowest and highest value, since all tensors at once
    would fill the memory. A share of the batches, `outlying`, may go below a range, and above it.
    """
    reduced = copied(model)
    graph = reduced.graph
    del graph.output[:]
    for operator in ("ReduceMin", "ReduceMax"):
        for name in tensors:
            output = f"{name}/{operator}"
            graph.node.append(helper.make_node(operator, [name], [output], keepdims=0))
            graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    session = open_tensors("cpu", reduced.SerializeToString(), title)
    image, _ = find_inputs(GraphIndex(model.graph))
    found = [[*session.run_watched(image.name, batch).values()] for batch in batches]
    if not found:
        return {}, 0
    lows, highs = np.split(np.array(found, np.float64), 2, axis=1)  # (batches, tensors) each
    # Of the values themselves: between infinite ones nothing can be interpolated.
    lowest = np.quantile(lows, outlying, axis=0, method="lower")
    highest = np.quantile(highs, 1 - outlying, axis=0, method="higher")
    limits = zip(lowest.tolist(), highest.tolist(), strict=True)
    return dict(zip(tensors, limits, strict=True)), len(found)


def serialised(model: ModelProto) -> bytes:
    """The bytes of a model file, the same for the same model."""
    return bytes(model.SerializeToString(deterministic=True))


def _essence(model: ModelProto) -> bytes:
    """The bytes of a model without inferred shapes."""
    bare = copied(model)
    del bare.graph.value_info[:]
    return serialised(bare)
