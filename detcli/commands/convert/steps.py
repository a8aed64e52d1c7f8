"""The passes that a conversion is made of, in an order in which they go together."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto

from detcli.commands.convert.calibration import Ranges, Tensor, float_tensors, observe, tensor_of
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.report import Step
from detcli.errors import ModelError, SourceError
from detcli.geometry import Picture
from detcli.model.contract import Contract
from detcli.model.graph import GraphIndex, bare_transposes, is_quantised, shape
from detcli.model.names import read_names
from detcli.model.passes import cut, infer_shapes
from detcli.model.passes.batch import set_batch
from detcli.model.passes.decode import decode_nodes, score_convolutions
from detcli.model.passes.editing import copied, names_entry, set_metadata
from detcli.model.passes.guard import guard_transposes
from detcli.model.passes.half import is_half, to_half
from detcli.model.passes.int8 import to_int8
from detcli.model.passes.selection import append_selection
from detcli.model.passes.size import set_image_size
from detcli.model.recognise import recognise

Pictures = Callable[[], Iterable[Picture]]
"""Pictures to take the ranges of values from, each time anew."""

LARGEST_HALF = 65504.0
MARGIN = 4.0
"""What another picture may need more than those that were looked at."""

MOST_NAMED = 3

FLOAT_DEPTH = 3
"""Convolutions of each branch of class scores that stay in float32 in an int8 model: little work,
and most of what 8 bits would do to the scores (see docs/convert.md)."""


class Steps:
    """Converts a model, pass by pass.

    Attributes:
        model: As far as it has been converted.
        done: What has been done to it.
    """

    def __init__(
        self, model: ModelProto, title: str, options: ConversionOptions, pictures: Pictures
    ) -> None:
        """Prepare.

        Args:
            model: With its weights; it stays as it is.
            title: What to call it in errors.
            options: What is to become of it.
            pictures: What to take the ranges of values from, for half and int8.
        """
        self.model, self.done = model, list[Step]()
        self._seen = 0
        self._title, self._options, self._pictures = title, options, pictures

    def run(self) -> None:
        """Convert.

        Raises:
            InferenceError: The network fails on a picture.
            ModelError: The model cannot be converted in this way.
            SourceError: No picture can be read.
            UsageError: The names or the size do not fit the model.
        """
        wanted = self._options
        steps: list[tuple[bool, str, _Step]] = [
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
        for asked_for, name, step in steps:
            if asked_for:
                self._apply(name, step)

    def _apply(self, name: str, step: "_Step") -> None:
        known = infer_shapes(self.model)
        contract = recognise(known, self._title, self._options.box_format)
        converted, finding = step(known, contract)
        _forget_shapes(converted, {contract.head, *(v.name for v in self.model.graph.value_info)})
        changed = _essence(converted) != _essence(self.model)
        if changed:
            self.model = converted
        self.done.append(Step(name, changed, finding, len(self.model.graph.node)))

    def _names(self, _: ModelProto, contract: Contract) -> "_Converted":
        path = self._options.names or Path()
        names = contract.with_names(read_names(path), str(path)).names
        return set_metadata(self.model, names_entry(names)), f"{len(names)} names from {path}"

    def _metadata(self, _: ModelProto, contract: Contract) -> "_Converted":  # noqa: ARG002 - as all
        entries = self._options.metadata
        return set_metadata(self.model, entries), ", ".join(entries)

    def _image_size(self, _: ModelProto, contract: Contract) -> "_Converted":
        size = self._options.imgsz or 0
        replace(contract, input_size=None).canvas(size)  # refuses what the stride does not divide
        resized = set_image_size(self.model, size, contract.anchor_count)
        was = contract.input_size
        said = f"{size}x{size}, was {f'{was[1]}x{was[0]}' if was else 'dynamic'}"
        return self._also_said(resized, "imgsz", str([size, size])), said

    def _batch(self, _: ModelProto, contract: Contract) -> "_Converted":
        size = self._options.batch_size
        changed = set_batch(self.model, size)
        said = f"{size or 'dynamic'}, was {contract.batch or 'dynamic'}"
        return self._also_said(changed, "batch", str(size or 1)), said

    def _also_said(self, model: ModelProto, key: str, value: str) -> ModelProto:
        """Keep the metadata true, where it says anything."""
        known = {entry.key for entry in self.model.metadata_props}
        return set_metadata(model, {key: value}) if key in known else model

    def _cut(self, known: ModelProto, contract: Contract) -> "_Converted":
        body = cut(known, contract.head)
        dropped = len(known.graph.node) - len(body.graph.node)
        return body, f"{dropped} nodes dropped behind {contract.head}"

    def _half(self, known: ModelProto, contract: Contract) -> "_Converted":
        if is_half(known):
            return self.model, "it is in float16 already"
        if is_quantised(known.graph):
            raise ModelError(
                f"--half: {self._title} is quantised", "convert the float32 model it was made from"
            )
        near = self._near_overflow(known)
        decode = decode_nodes(known.graph, contract.head)
        behind = GraphIndex(known.graph).moved_from(contract.head)
        overflowing = {
            node.output[0]
            for node in known.graph.node
            if not near.isdisjoint((*node.input, *node.output))
        }
        exact = decode | behind | overflowing
        half = to_half(self.model, exact, keep_inputs_and_outputs=self._options.keep_io)
        kept = sum(node.output[0] in exact for node in known.graph.node)
        finding = f"{kept} nodes stay in float32: the decode of boxes and what follows it"
        if overflowing:
            some = ", ".join(sorted(overflowing)[:MOST_NAMED])
            finding += f"; {len(overflowing)} whose values float16 might not hold, such as {some}"
        return half, f"{finding} (seen on {self._seen_pictures})"

    def _near_overflow(self, known: ModelProto) -> set[str]:
        """Tensors of which some picture's values may not fit into float16."""
        ranges = self._observed(known, float_tensors(known))
        ranges |= {
            tensor.name: (float(values.min()), float(values.max()))
            for tensor in known.graph.initializer
            if tensor.data_type == TensorProto.FLOAT
            and (values := onnx.numpy_helper.to_array(tensor)).size
        }
        limit = LARGEST_HALF / MARGIN
        return {name for name, (low, high) in ranges.items() if not -limit <= low <= high <= limit}

    def _int8(self, known: ModelProto, contract: Contract) -> "_Converted":
        if is_quantised(known.graph):
            return self.model, "it is quantised already"
        if is_half(known):
            raise ModelError(
                f"--int8: {self._title} is in float16", "convert the float32 model it was made from"
            )
        exact = decode_nodes(known.graph, contract.head)
        exact |= score_convolutions(known.graph, contract.head, FLOAT_DEPTH)
        all_of_them = [node for node in known.graph.node if node.op_type == "Conv"]
        chosen = [node for node in all_of_them if node.output[0] not in exact]
        tensors = {name for node in chosen for name in (node.input[0], node.output[0])}
        quantised = to_int8(self.model, self._observed(known, sorted(tensors)), exact)
        said = f"{len(chosen)} of {len(all_of_them)} convolutions, as seen on {self._seen_pictures}"
        return quantised, said

    @property
    def _seen_pictures(self) -> str:
        return "1 picture" if self._seen == 1 else f"{self._seen} pictures"

    def _observed(self, known: ModelProto, tensors: list[str]) -> Ranges:
        """The ranges of tensors on the pictures."""
        contract = recognise(known, self._title, self._options.box_format)
        self._seen = 0

        def batches() -> Iterator[Tensor]:
            for picture in self._pictures():
                self._seen += 1
                yield tensor_of(picture, contract)

        ranges = observe(known, tensors, batches(), self._title)
        if not self._seen:
            raise SourceError("there is no picture to calibrate on", "name a folder that has some")
        return ranges

    def _selection(self, known: ModelProto, contract: Contract) -> "_Converted":
        ended = append_selection(known, contract, self._options.rows)
        dims = shape(ended.graph.output[0])
        return ended, f"ends in [{', '.join(map(str, dims))}]"

    def _guard(self, _: ModelProto, contract: Contract) -> "_Converted":  # noqa: ARG002 - as all
        count = len(bare_transposes(self.model.graph))
        return guard_transposes(self.model), f"{count} outputs are fed by a Transpose directly"


_Converted = tuple[ModelProto, str]
"""A model, and what to say about it."""
_Step = Callable[[ModelProto, Contract], _Converted]


def serialised(model: ModelProto) -> bytes:
    """The bytes of a model file; the same for the same model."""
    return bytes(model.SerializeToString(deterministic=True))


def _essence(model: ModelProto) -> bytes:
    """What is to a model but what can be inferred."""
    bare = copied(model)
    _forget_shapes(bare, set())
    return serialised(bare)


def _forget_shapes(model: ModelProto, kept: set[str]) -> None:
    """Leave out the shapes that were only inferred for the work."""
    values = [value for value in model.graph.value_info if value.name in kept]
    del model.graph.value_info[:]
    model.graph.value_info.extend(values)
