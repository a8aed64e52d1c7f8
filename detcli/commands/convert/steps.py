"""How to convert a model."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, helper

from detcli.backend import open_tensors
from detcli.backend.failures import RUN_TIMEOUT_S, run_with_timeout
from detcli.backend.preprocess import place, to_batch
from detcli.commands.convert.passes import (
    decode_nodes,
    first_convolutions,
    guard_transposes,
    is_half,
    score_convolutions,
    set_batch,
    set_image_size,
    to_half,
    to_int8,
)
from detcli.commands.convert.selection import append_selection
from detcli.errors import ModelError, SourceError, UsageError
from detcli.geometry import Picture
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.editing import copied, cut, infer_shapes, names_entry, set_metadata
from detcli.model.graph import GraphIndex, bare_transposes, is_quantised, shape
from detcli.model.inputs import find_inputs
from detcli.model.names import read_names
from detcli.model.preprocessing import METADATA_KEY, written
from detcli.model.recognise import FAMILY_KEY, Reading, read_graph

StepName = Literal[
    "names", "metadata", "imgsz", "batch", "cut", "half", "int8", "end-to-end", "guard-transpose"
]
"""The option that asks for a step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass over the graph.

    Attributes:
        name: The option that asked for it.
        changed: Whether it changed the graph.
        finding: What it did, or why it changed nothing.
        nodes: Number of nodes in the graph after it.
    """

    name: StepName
    changed: bool
    finding: str
    nodes: int


BatchSize = int | Literal["dynamic"]
"""Number of pictures that a graph takes at a time."""

MAX_SIDE = 16384
"""Largest input side, in pixels: its anchor grid alone has 5 million cells."""

MAX_ROWS = 300
TWICE = "convert twice, into two files"


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How to convert a model.

    Raises:
        UsageError: Options contradict one another, or there are none.
    """

    cut: bool = False  # drop everything after the network body
    guard_transpose: bool = False  # add a Concat after each Transpose that feeds an output
    half: bool = False  # compute in float16
    keep_io: bool = False  # with `half`: inputs and outputs stay float32
    int8: bool = False  # compute convolutions in 8 bits
    batch: BatchSize | None = None  # pictures in a batch; None to keep it
    imgsz: int | None = None  # height and width of the input; None to keep them
    names: Path | None = None  # a file with class names
    metadata: Mapping[str, str] = field(default_factory=dict)  # an empty value removes an entry
    contract: bool = False  # nothing but what neighbours and options say, which is always written
    end_to_end: bool = False  # append the selection
    max_det: int | None = None  # with `end_to_end`: number of rows it keeps; None for 300
    box_format: BoxFormat | None = None  # of the box rows, where the graph does not show it
    preprocess: str | None = None  # parts of it, where the model does not say
    tolerance: Mapping[str, float] = field(default_factory=dict)  # replaces the defaults
    force: bool = False  # overwrite the output, which may be the model itself

    def __post_init__(self) -> None:
        if self.cut and self.end_to_end:
            raise UsageError("--cut and --end-to-end are mutually exclusive", TWICE)
        if self.half and self.int8:
            raise UsageError("--half and --int8 are mutually exclusive", TWICE)
        if self.keep_io and not self.half:
            raise UsageError("--keep-io needs --half", "leave it out, or add --half")
        if self.max_det is not None and not self.end_to_end:
            raise UsageError("--max-det needs --end-to-end", "leave it out, or add --end-to-end")
        if self.imgsz is not None and not 1 <= self.imgsz <= MAX_SIDE:
            raise UsageError(f"--imgsz is {self.imgsz}", f"give 1 to {MAX_SIDE} pixels")
        if isinstance(self.batch, int) and self.batch < 1:
            raise UsageError(f"--batch is {self.batch}", "give 1 or more")
        if self.rows < 1:
            raise UsageError(f"--max-det is {self.max_det}", "give 1 or more")
        switches = (self.cut, self.guard_transpose, self.half, self.int8, self.end_to_end)
        entries = self.names or self.metadata or self.contract
        if not any((*switches, self.batch, self.imgsz, entries)):
            raise UsageError(
                "there is nothing to do",
                "give at least one of --cut, --guard-transpose, --half, --int8, "
                "--batch, --imgsz, --names, --metadata, --end-to-end",
            )

    @property
    def rows(self) -> int:
        """Number of rows that the selection keeps."""
        return MAX_ROWS if self.max_det is None else self.max_det

    @property
    def batch_size(self) -> int | None:
        """The batch size; None for a dynamic batch."""
        return self.batch if isinstance(self.batch, int) else None


Pictures = Callable[[], Iterable[Picture]]
"""Returns the pictures to calibrate on, at each call from the start."""

Tensor = npt.NDArray[Any]

Ranges = dict[str, tuple[float, float]]
"""The lowest and the highest value of tensors, by name."""

OUTLYING = 0.1
"""Share of the pictures whose lowest and whose highest value an int8 model may cut off: for the
sake of few, the steps between all values would widen (see docs/convert.md)."""


def tensor_of(picture: Picture, contract: Contract) -> Tensor:
    """A picture as an input of the network, repeated to fill the batch: `(B, 3, H, W)`."""
    preprocessing = contract.preprocessing
    letterbox = place(picture.size, contract.canvas(), preprocessing)
    batch = contract.batch or 1
    return to_batch(picture, letterbox, preprocessing, contract.input_dtype, batch)


def float_tensors(model: ModelProto) -> list[str]:
    """Names of the float32 tensors that a graph computes, in order; shapes must be inferred."""
    values = (*model.graph.value_info, *model.graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return [name for node in model.graph.node for name in node.output if name in floats]


def observe(
    model: ModelProto,
    tensors: Collection[str],
    batches: Iterable[Tensor],
    title: str,
    outlying: float = 0.0,
) -> Ranges:
    """Run a network and return the range of each tensor.

    The graph itself reduces each tensor to its lowest and highest value, since all tensors at once
    would fill the memory.

    Args:
        model: A network with one image input.
        tensors: Names of its float tensors, possibly with the input.
        batches: What to feed it.
        title: Its name in errors.
        outlying: Share of the batches that may go below a range, and above it.

    Returns:
        The ranges; none without a batch.

    Raises:
        InferenceError: The network failed on a batch.
        ModelError: The runtime refuses the graph.
    """
    wanted = list(tensors)
    session = open_tensors("cpu", _reduced(model, wanted).SerializeToString(), title)
    image, _ = find_inputs(GraphIndex(model.graph))
    found = [[*session.run_watched(image.name, batch).values()] for batch in batches]
    if not found:
        return {}
    lows, highs = np.split(np.array(found, np.float64), 2, axis=1)  # (batches, tensors) each
    # Of the values themselves: between infinite ones nothing can be interpolated.
    lowest = np.quantile(lows, outlying, axis=0, method="lower")
    highest = np.quantile(highs, 1 - outlying, axis=0, method="higher")
    return dict(zip(wanted, zip(lowest.tolist(), highest.tolist(), strict=True), strict=True))


def _reduced(model: ModelProto, tensors: list[str]) -> ModelProto:
    """The model with the lowest values of tensors as outputs, then the highest."""
    reduced = copied(model)
    graph = reduced.graph
    del graph.output[:]
    for operator in ("ReduceMin", "ReduceMax"):
        for name in tensors:
            output = f"{name}/{operator}"
            graph.node.append(helper.make_node(operator, [name], [output], keepdims=0))
            graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    return reduced


MAX_HALF = 65504.0
MARGIN = 4.0
"""Factor by which the values of other pictures may be larger."""

SQUARING = frozenset(
    "GroupNormalization InstanceNormalization LayerNormalization LpNormalization ReduceL2 "
    "ReduceSumSquare RMSNormalization SimplifiedLayerNormalization".split()
)
"""Operators that square their input internally, where no tensor shows an overflow."""

MAX_SQUARED = (MAX_HALF / MARGIN) ** 0.5

MAX_LISTED = 3

FLOAT_DEPTH = 3
"""Number of convolutions that stay in float32 at the end of each branch of class scores in an int8
model: they are little work and cause most of the error of the scores (see docs/convert.md)."""

FLOAT_START = 2
"""Number of convolutions that stay in float32 at its beginning: their values range furthest, and
all others inherit their errors."""


class Steps:
    """Converts a model, pass by pass."""

    def __init__(
        self, model: ModelProto, title: str, options: ConversionOptions, pictures: Pictures
    ) -> None:
        """Prepare to convert the model, which stays unchanged; errors name its title."""
        self.model, self.done = model, list[Step]()  # after the passes so far, and these
        self._seen = 0
        self._title, self._options, self._pictures = title, options, pictures

    def run(self) -> None:
        """Run the passes that the options ask for.

        Raises:
            InferenceError: The network failed on a picture.
            ModelError: The model cannot be converted with these options.
            SourceError: No picture can be read.
            UsageError: The names or the size do not fit the model.
        """
        wanted = self._options
        steps: list[tuple[bool, StepName, _Step]] = [
            (wanted.names is not None, "names", self._names),
            (bool(wanted.metadata), "metadata", self._metadata),
            (wanted.cut, "cut", self._cut),
            (wanted.imgsz is not None, "imgsz", self._image_size),
            (wanted.batch is not None, "batch", self._batch),
            (wanted.half, "half", self._half),
            (wanted.int8, "int8", self._int8),
            (wanted.end_to_end, "end-to-end", self._selection),
            (wanted.guard_transpose, "guard-transpose", self._guard),
        ]
        for name, step in ((name, step) for asked_for, name, step in steps if asked_for):
            known = infer_shapes(self.model)
            reading = read_graph(known, self._title, wanted.box_format)
            converted, finding = step(known, reading)
            heads = reading.adaptation.head.tensors
            kept = {*heads, *(value.name for value in self.model.graph.value_info)}
            _forget_shapes(converted, kept)
            changed = _essence(converted) != _essence(self.model)
            if changed:
                self.model = converted
            self.done.append(Step(name, changed, finding, len(self.model.graph.node)))

    def _names(self, _: ModelProto, reading: Reading) -> "_Converted":
        path = self._options.names or Path()
        names = reading.contract.with_names(read_names(path), str(path)).names
        return set_metadata(self.model, names_entry(names)), f"{len(names)} names from {path}"

    def _metadata(self, _: ModelProto, reading: Reading) -> "_Converted":  # noqa: ARG002 - as all
        entries = self._options.metadata
        return set_metadata(self.model, entries), ", ".join(entries)

    def _image_size(self, _: ModelProto, reading: Reading) -> "_Converted":
        size, contract = self._options.imgsz or 0, reading.contract
        replace(contract, input_size=None).canvas(size)  # raises unless the stride divides it
        resized = set_image_size(self.model, size)
        was = contract.input_size
        finding = f"{size}x{size}, was {f'{was[1]}x{was[0]}' if was else 'dynamic'}"
        return self._update_metadata(resized, "imgsz", str([size, size])), finding

    def _batch(self, _: ModelProto, reading: Reading) -> "_Converted":
        size, contract = self._options.batch_size, reading.contract
        if contract.layout is Layout.ROWS:
            raise ModelError(
                "--batch: the graph selects its detections itself, for the batch it was exported "
                "with",
                "export the model again with that batch",
            )
        changed = set_batch(self.model, size)
        finding = f"{size or 'dynamic'}, was {contract.batch or 'dynamic'}"
        return self._update_metadata(changed, "batch", str(size or 1)), finding

    def _update_metadata(self, model: ModelProto, key: str, value: str) -> ModelProto:
        """Update an entry of the metadata that exists."""
        known = {entry.key for entry in self.model.metadata_props}
        return set_metadata(model, {key: value}) if key in known else model

    def _cut(self, known: ModelProto, reading: Reading) -> "_Converted":
        if reading.contract.layout is Layout.ROWS:
            raise ModelError(
                "--cut: the graph selects its detections itself, and what it selects from is not "
                "clear",
                "leave it out",
            )
        heads = reading.adaptation.head.tensors
        body = cut(known, *heads)
        dropped = len(known.graph.node) - len(body.graph.node)
        return body, f"{dropped} nodes after {' and '.join(heads)} dropped"

    def _half(self, known: ModelProto, reading: Reading) -> "_Converted":
        if is_half(known):
            return self.model, "already in float16"
        if is_quantised(known.graph):
            raise ModelError(
                f"--half: {self._title} is quantised", "convert the float32 model it was made from"
            )
        ranges = self._float_ranges(known, reading)
        near = {name for name, limits in ranges.items() if not _within(limits, MAX_HALF / MARGIN)}
        squared = {name for name, limits in ranges.items() if not _within(limits, MAX_SQUARED)}
        head = reading.adaptation.head
        decode = decode_nodes(known.graph, (piece.tensor for piece in head.boxes))
        index = GraphIndex(known.graph)
        behind = set().union(*(index.moved_from(tensor) for tensor in head.tensors))
        overflowing = {
            node.output[0]
            for node in known.graph.node
            if not near.isdisjoint((*node.input, *node.output))
            or (node.op_type in SQUARING and not squared.isdisjoint(node.input[:1]))
        }
        exact = decode | behind | overflowing
        keep = self._options.keep_io
        run = partial(to_half, self.model, exact, keep_inputs_and_outputs=keep)
        half = run_with_timeout(RUN_TIMEOUT_S, self._title, run)
        kept = sum(node.output[0] in exact for node in known.graph.node)
        finding = f"{kept} nodes stay in float32: the box decoding and what follows it"
        if overflowing:
            some = ", ".join(sorted(overflowing)[:MAX_LISTED])
            finding += f"; {len(overflowing)} that might overflow, such as {some}"
        return half, f"{finding} (calibrated on {self._seen_pictures})"

    def _float_ranges(self, known: ModelProto, reading: Reading) -> Ranges:
        """The ranges of all float32 tensors and constants."""
        return self._observed(known, reading, float_tensors(known)) | {
            tensor.name: (float(values.min()), float(values.max()))
            for tensor in known.graph.initializer
            if tensor.data_type == TensorProto.FLOAT
            and (values := onnx.numpy_helper.to_array(tensor)).size
        }

    def _int8(self, known: ModelProto, reading: Reading) -> "_Converted":
        if is_quantised(known.graph):
            return self.model, "already quantised"
        if is_half(known):
            raise ModelError(
                f"--int8: {self._title} is in float16", "convert the float32 model it was made from"
            )
        head = reading.adaptation.head
        exact = decode_nodes(known.graph, (piece.tensor for piece in head.boxes))
        scores = (piece.tensor for piece in head.scores)
        exact |= score_convolutions(known.graph, scores, FLOAT_DEPTH)
        convolutions = [node for node in known.graph.node if node.op_type == "Conv"]
        image, _ = find_inputs(GraphIndex(known.graph))
        first = first_convolutions(known.graph, image.name, FLOAT_START)
        if not {node.output[0] for node in convolutions} <= exact | first:  # a tiny network
            exact |= first
        chosen = [node for node in convolutions if node.output[0] not in exact]
        tensors = {name for node in chosen for name in (node.input[0], node.output[0])}
        ranges = self._observed(known, reading, sorted(tensors), OUTLYING)
        run = partial(to_int8, self.model, ranges, exact)
        quantised = run_with_timeout(RUN_TIMEOUT_S, self._title, run)
        share = f"{len(chosen)} of {len(convolutions)} convolutions"
        return quantised, f"{share}, calibrated on {self._seen_pictures}"

    @property
    def _seen_pictures(self) -> str:
        return "1 picture" if self._seen == 1 else f"{self._seen} pictures"

    def _observed(
        self, known: ModelProto, reading: Reading, tensors: list[str], outlying: float = 0.0
    ) -> Ranges:
        """The ranges of tensors over the pictures, see `observe`."""
        self._seen = 0
        if not tensors:
            return {}  # a network that returns nothing cannot run

        def batches() -> Iterator[Tensor]:
            for picture in self._pictures():
                self._seen += 1
                yield tensor_of(picture, reading.contract)

        ranges = observe(reading.fed(known), tensors, batches(), self._title, outlying)
        if not self._seen:
            raise SourceError(
                "no picture to calibrate on", "name a folder of pictures with --calibrate"
            )
        return ranges

    def _selection(self, known: ModelProto, reading: Reading) -> "_Converted":
        contract, adapted = reading.contract, reading.adaptation.is_needed
        body = reading.body(known) if adapted and contract.layout is not Layout.ROWS else known
        rows = self._options.rows
        ended = append_selection(body, contract, min(rows, contract.most or rows))
        if adapted:  # the rows show neither the family nor how pictures are prepared
            entries = {FAMILY_KEY: contract.family, METADATA_KEY: written(contract.preprocessing)}
            ended = set_metadata(ended, entries)
        dims = shape(ended.graph.output[0])
        return ended, f"ends in [{', '.join(map(str, dims))}]"

    def _guard(self, _: ModelProto, reading: Reading) -> "_Converted":  # noqa: ARG002 - as all
        count = len(bare_transposes(self.model.graph))
        return guard_transposes(self.model), f"{count} outputs come directly from a Transpose"


_Converted = tuple[ModelProto, str]
"""A model, and a sentence on what was done."""
_Step = Callable[[ModelProto, Reading], _Converted]


def serialised(model: ModelProto) -> bytes:
    """The bytes of a model file, the same for the same model."""
    return bytes(model.SerializeToString(deterministic=True))


def _essence(model: ModelProto) -> bytes:
    """The bytes of a model without inferred shapes."""
    bare = copied(model)
    _forget_shapes(bare, set())
    return serialised(bare)


def _forget_shapes(model: ModelProto, kept: set[str]) -> None:
    """Remove inferred shapes, except those of some tensors."""
    values = [value for value in model.graph.value_info if value.name in kept]
    del model.graph.value_info[:]
    model.graph.value_info.extend(values)


def _within(limits: tuple[float, float], most: float) -> bool:
    return -most <= limits[0] <= limits[1] <= most
