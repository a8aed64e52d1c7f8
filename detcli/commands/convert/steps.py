"""Converts a graph pass by pass, in a fixed order."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from onnx import GraphProto, ModelProto

from detcli.backend.protocol import RUN_TIMEOUT_S, run_with_timeout
from detcli.commands.convert import number_types, passes
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.selection import append_selection
from detcli.commands.convert.value_ranges import (
    Observation,
    constant_ranges,
    float_tensors,
    observe,
    overflowing_nodes,
    tensor_of,
)
from detcli.core import frozen
from detcli.core.errors import ModelError, SourceError, UsageError
from detcli.core.text import pluralize
from detcli.data.geometry import Image, Size
from detcli.model.contract import Contract, Layout, read_names
from detcli.model.editing import copied, cut, infer_shapes, names_entry, set_metadata
from detcli.model.graph import GraphIndex, bare_transposes, is_half, is_quantised, shape
from detcli.model.inputs import find_inputs
from detcli.model.metadata import FAMILY_KEY, IGNORED_BY_HEAD, read_recommendations
from detcli.model.preprocessing import METADATA_KEY, format_preprocessing
from detcli.model.recognise import Reading, read_graph

MAX_LISTED = 3

# For each, see docs/convert.md.
# Share of the images whose lowest and whose highest value an int8 model may cut off: for the sake
# of few, the steps between all values would widen.
OUTLIER_SHARE = 0.1
# Convolutions that stay in float32 at the end of each branch of class scores in an int8 model: they
# are little work and cause most of the error of the scores.
FLOAT_DEPTH = 3
# And at its beginning: their values range furthest, and all others inherit their errors.
FLOAT_START = 2

Images = Callable[[], Iterable[Image]]  # the images to calibrate on, from the start


class PassResult(NamedTuple):
    """What a pass makes of a model."""

    model: ModelProto  # the converted model, or the same where there was nothing to do
    finding: str  # what the pass did, or why it changed nothing, for the report


@frozen
class Step:
    """One pass over the graph."""

    name: str  # the option that asked for it
    changed: bool
    finding: str  # what it did, or why it changed nothing
    nodes: int  # in the graph after it


class Steps:
    """Converts a model, pass by pass.

    The method of a pass converts `model`. It may look at the shapes and the head of the same model,
    which are inferred before each pass.
    """

    _shaped: ModelProto  # the model with the shapes of all tensors, before the pass that runs
    _reading: Reading  # how detcli reads that model as a detector

    def __init__(
        self, model: ModelProto, title: str, options: ConversionOptions, images: Images
    ) -> None:
        """Prepare to convert a model.

        Args:
            model: The model, which stays as it is.
            title: Its name in errors.
            options: The passes to run.
            images: Returns the images for calibration, from the start each time.
        """
        self.model = model  # converted by the passes that have run so far
        self.done: list[Step] = []  # what each of these passes did, for the report
        self._title = title
        self._options = options
        self._images = images

    def run(self) -> None:
        """Run the passes that the options ask for, always in this order."""
        options = self._options
        settings = options.config.settings
        passes_by_option = [
            (settings.names, "names", self._names),
            (options.entries, "metadata", self._metadata),
            (options.cut, "cut", self._cut_after_heads),
            (settings.imgsz, "imgsz", self._image_size),
            (options.batch, "batch", self._set_batch),
            (options.half, "half", self._make_half),
            (options.int8, "int8", self._make_int8),
            (options.end_to_end, "end-to-end", self._append_selection),
            (options.guard_transpose, "guard-transpose", self._guard),
        ]
        for value, name, convert in passes_by_option:
            if value:
                self._run_pass(name, convert)

    def _run_pass(self, name: str, convert: Callable[[], PassResult]) -> None:
        """Run one pass on `model`, put its result in the place of `model`, and add it to `done`.

        Before, this sets what passes read besides `model`: `_shaped`, the same model with the
        shapes of all tensors, and `_reading`, how detcli reads that model as a detector.

        Args:
            name: The option that asked for the pass.
            convert: The method of the pass.
        """
        self._shaped = infer_shapes(self.model)
        box_format = self._options.config.settings.box_format
        self._reading = read_graph(self._shaped, self._title, box_format)

        converted, finding = convert()  # the finding is what the pass did, in words
        self._drop_inferred_shapes(converted.graph)
        has_changed = _without_shapes(converted) != _without_shapes(self.model)
        if has_changed:
            self.model = converted
        node_count = len(self.model.graph.node)
        self.done.append(Step(name, has_changed, finding, node_count))

    def _drop_inferred_shapes(self, graph: GraphProto) -> None:
        """Remove the shapes of tensors that were inferred before a pass from the graph after it.

        The shapes that the model had before stay, and so do those of its heads, which are the
        tensors with boxes and scores.
        """
        shaped_tensors = {value.name for value in self.model.graph.value_info}
        shaped_tensors.update(self._reading.adaptation.head.tensors)
        values = [value for value in graph.value_info if value.name in shaped_tensors]
        del graph.value_info[:]
        graph.value_info.extend(values)

    def _names(self) -> PassResult:
        """Write the names of the classes into the metadata."""
        path = Path(self._options.config.settings.names or "")
        names = self._reading.contract.with_names(read_names(path), str(path)).names
        converted = set_metadata(self.model, names_entry(names))
        return PassResult(converted, f"{len(names)} names from {path}")

    def _metadata(self) -> PassResult:
        """Set entries of the model's metadata, and remove those that the user leaves empty.

        Raises:
            UsageError: An entry has a value that detcli would ignore, such as a confidence of 2.
        """
        entries = self._options.entries
        non_empty_entries = {key: value for key, value in entries.items() if value}
        contract = self._reading.contract
        # What detcli will read from these entries in the converted file.
        recommended = read_recommendations(non_empty_entries, contract.nms, contract.names)
        if recommended.ignored:
            raise UsageError(
                _refusal_of_entry(recommended.ignored[0]),
                "leave the entry out; docs/models.md says what it may be",
            )

        converted = set_metadata(self.model, entries)  # also removes entries without a value
        return PassResult(converted, ", ".join(entries))

    def _image_size(self) -> PassResult:
        """Make the model take square images of the size `--imgsz` only.

        Raises:
            UsageError: The size is not a multiple of the stride of the network.
            ModelError: The graph cannot take that size, for example because it has a fixed one.
        """
        size = cast("int", self._options.config.settings.imgsz)  # not None, or this would not run
        contract = self._reading.contract
        _require_multiple_of_stride(contract, size)
        resized = passes.set_image_size(self.model, size)
        converted = self._with_entry_updated(resized, "imgsz", str([size, size]))
        finding = f"{_size_text((size, size))}, was {_size_text(contract.input_size)}"
        return PassResult(converted, finding)

    def _set_batch(self) -> PassResult:
        """Make the model take the number of images `--batch` at a time, or any number.

        Raises:
            ModelError: The graph selects its detections itself, or cannot take a different batch.
        """
        contract = self._reading.contract
        if contract.layout is Layout.ROWS:
            raise ModelError(
                "--batch: the graph selects its detections itself, for the batch it was exported "
                "with",
                "export the model again with that batch",
            )
        size = None  # any number, as "--batch dynamic" asks for
        size_in_metadata = 1  # as exporters write it for any number
        if isinstance(self._options.batch, int):
            size = self._options.batch
            size_in_metadata = size
        resized = passes.set_batch(self.model, size)
        converted = self._with_entry_updated(resized, "batch", str(size_in_metadata))
        return PassResult(converted, f"{size or 'dynamic'}, was {contract.batch or 'dynamic'}")

    def _with_entry_updated(self, model: ModelProto, key: str, value: str) -> ModelProto:
        """Set an entry of a model's metadata, but only if the model had this entry before the pass.

        Args:
            model: The model after the pass.
            key: The key of the entry.
            value: Its value after the pass.
        """
        if any(entry.key == key for entry in self.model.metadata_props):
            return set_metadata(model, {key: value})
        return model

    def _cut_after_heads(self) -> PassResult:
        """Drop all nodes after the heads, such as those that select boxes.

        The heads are the tensors with boxes and scores.

        Raises:
            ModelError: The graph has no heads, only the detections that it selects.
        """
        graph_selects_detections = self._reading.contract.layout is Layout.ROWS
        if graph_selects_detections:
            raise ModelError(
                "--cut: the graph selects its detections itself, and what it selects from is not "
                "clear",
                "leave it out",
            )

        head_tensors = self._reading.adaptation.head.tensors
        model_up_to_heads = cut(self._shaped, *head_tensors)

        dropped_count = len(self._shaped.graph.node) - len(model_up_to_heads.graph.node)
        heads = " and ".join(head_tensors)
        return PassResult(model_up_to_heads, f"{dropped_count} nodes after {heads} dropped")

    def _make_half(self) -> PassResult:
        """Make the network compute in float16, except for the nodes that need float32.

        Nodes that decode boxes need it, as float16 has too few digits for pixels. So do nodes whose
        values may exceed the range of float16, as the images for calibration show.

        Raises:
            ModelError: The network is quantised.
        """
        graph = self._shaped.graph
        if is_half(self._shaped):
            return PassResult(self.model, "already in float16")
        if is_quantised(graph):
            raise ModelError(
                f"--half: {self._title} is quantised", "convert the float32 model it was made from"
            )

        # Nodes may have no names, so each is identified by its first output.
        observation = self._observe(float_tensors(self._shaped))
        ranges = observation.ranges | constant_ranges(graph)
        overflowing_outputs = overflowing_nodes(graph, ranges)
        float32_outputs = self._outputs_of_postprocessing() | overflowing_outputs

        to_half = partial(
            number_types.to_half,
            self.model,
            float32_outputs,
            keep_inputs_and_outputs=self._options.keep_io,
        )
        converted = run_with_timeout(RUN_TIMEOUT_S, self._title, to_half)

        node_count = sum(node.output[0] in float32_outputs for node in graph.node)
        finding = f"{node_count} nodes stay in float32: the box decoding and what follows it"
        if overflowing_outputs:
            examples = ", ".join(sorted(overflowing_outputs)[:MAX_LISTED])
            finding += f"; {len(overflowing_outputs)} that might overflow, such as {examples}"
        finding += f" (calibrated on {pluralize(observation.image_count, 'image')})"
        return PassResult(converted, finding)

    def _outputs_of_postprocessing(self) -> set[str]:
        """Name the tensors that are computed after the network proper.

        These are the outputs of nodes that decode boxes, the head itself, which is the tensors with
        boxes and scores, and what is computed from the head, such as a selection of detections.
        """
        graph = self._shaped.graph
        head = self._reading.adaptation.head  # as detcli has recognised it
        box_tensors = [box_piece.tensor for box_piece in head.boxes]
        outputs = passes.decode_nodes(graph, box_tensors)
        index = GraphIndex(graph)
        outputs.update(index.tensors_computed_from(*head.tensors))
        return outputs

    def _make_int8(self) -> PassResult:
        """Make convolutions compute in 8 bits, except those whose errors would count most.

        To scale the 8 bits, the quantiser needs the lowest and highest value of each tensor that
        these convolutions read or compute. They are observed on the images for calibration.

        Raises:
            ModelError: The model is in float16.
        """
        graph = self._shaped.graph
        if is_quantised(graph):
            return PassResult(self.model, "already quantised")
        if is_half(self._shaped):
            raise ModelError(
                f"--int8: {self._title} is in float16", "convert the float32 model it was made from"
            )
        float32_outputs = self._outputs_too_sensitive_for_int8()
        convolutions = [node for node in graph.node if node.op_type == "Conv"]
        quantised_count = 0
        tensors_to_observe = set()
        for node in convolutions:
            if node.output[0] in float32_outputs:
                continue
            quantised_count += 1
            tensors_to_observe.add(node.input[0])
            tensors_to_observe.add(node.output[0])
        observation = self._observe(sorted(tensors_to_observe), OUTLIER_SHARE)

        to_int8 = partial(number_types.to_int8, self.model, observation.ranges, float32_outputs)
        converted = run_with_timeout(RUN_TIMEOUT_S, self._title, to_int8)
        images = pluralize(observation.image_count, "image")
        finding = f"{quantised_count} of {len(convolutions)} convolutions, calibrated on {images}"
        return PassResult(converted, finding)

    def _outputs_too_sensitive_for_int8(self) -> set[str]:
        """Find the nodes that stay in float32, as their errors would count most in 8 bits.

        These are the nodes that decode boxes, the last convolutions before the class scores, and
        the first ones after the image. In a network so small that no other convolutions are left,
        the first ones are not among them, so that something is quantised.

        Returns:
            The first output of each node.
        """
        graph = self._shaped.graph
        head = self._reading.adaptation.head  # as detcli has recognised it
        box_tensors = [box_piece.tensor for box_piece in head.boxes]
        score_tensors = [score_piece.tensor for score_piece in head.scores]
        float32_outputs = passes.decode_nodes(graph, box_tensors)
        float32_outputs |= passes.score_convolutions(graph, score_tensors, FLOAT_DEPTH)

        image_input, _ = find_inputs(GraphIndex(graph))
        first_convolutions = passes.first_convolutions(graph, image_input.name, FLOAT_START)
        all_convolutions = {node.output[0] for node in graph.node if node.op_type == "Conv"}
        other_convolutions = all_convolutions - float32_outputs - first_convolutions
        if other_convolutions:
            float32_outputs |= first_convolutions
        return float32_outputs

    def _observe(self, tensors: list[str], outlier_share: float = 0.0) -> Observation:
        """Run the network on the images for calibration, and record which values tensors take.

        Args:
            tensors: The names of the tensors to look at.
            outlier_share: The share of images that may have values outside the range, at each of
                its ends; 0 to include all values.

        Raises:
            SourceError: There is not a single image.
        """
        if not tensors:
            # The network would have no outputs, since it only returns what is observed, and such a
            # network cannot run.
            return Observation({}, 0)
        contract = self._reading.contract
        batches = (tensor_of(image, contract) for image in self._images())  # one after the other
        network = self._reading.with_image_input(self._shaped)
        observation = observe(network, tensors, batches, self._title, outlier_share)
        if not observation.image_count:
            raise SourceError(
                "no image to calibrate on", "name a folder of images with --calibrate"
            )
        return observation

    def _append_selection(self) -> PassResult:
        """Append nodes that select detections to the network, in place of its own selection.

        Raises:
            ModelError: The graph selects its detections itself, or needs another selection.
        """
        contract = self._reading.contract  # how detcli reads the network's output

        # For some architectures, detcli adds nodes that compute boxes and scores. None are added
        # here to a graph that selects its detections itself, which `append_selection` refuses.
        network = self._shaped
        is_adapted = self._reading.adaptation.is_needed
        graph_selects_detections = contract.layout is Layout.ROWS
        if is_adapted and not graph_selects_detections:
            network = self._reading.body(self._shaped)

        max_det = self._options.max_det
        if contract.max_detections:
            max_det = min(max_det, contract.max_detections)
        converted = append_selection(network, contract, max_det)
        if is_adapted:
            # The new output no longer shows the architecture, nor how images are to be prepared.
            entries = {
                FAMILY_KEY: contract.family,
                METADATA_KEY: format_preprocessing(contract.preprocessing),
            }
            converted = set_metadata(converted, entries)
        dims = [str(dim) for dim in shape(converted.graph.output[0])]
        return PassResult(converted, f"ends in [{', '.join(dims)}]")

    def _guard(self) -> PassResult:
        """Add nodes after each Transpose that feeds an output, which engines may leave out."""
        transposes = len(bare_transposes(self.model.graph))
        finding = f"{transposes} outputs come directly from a Transpose"
        return PassResult(passes.guard_transposes(self.model), finding)


def _require_multiple_of_stride(contract: Contract, size: int) -> None:
    """Raise a UsageError if a network cannot take square images of a size, due to its stride.

    If the graph has a different fixed size, that is left to `passes.set_image_size` to refuse.
    """
    contract_of_any_size = replace(contract, input_size=None)
    contract_of_any_size.input_shape(size)


def _refusal_of_entry(warning: str) -> str:
    """Turn a warning about an entry in a model's metadata into the refusal of --metadata.

    "its metadata detcli.conf is '2', not a number from 0 to 1, so it is ignored" becomes
    "--metadata detcli.conf is '2', not a number from 0 to 1".
    """
    problem = warning.removesuffix(", so it is ignored")
    problem = problem.replace(
        IGNORED_BY_HEAD, " has no effect: the model's head gives one box for each object"
    )
    return problem.replace("its metadata", "--metadata")


def _size_text(size: Size | None) -> str:
    """Return a height and width as text, such as "640x480" for 480 rows, or "dynamic" for None."""
    if size is None:
        return "dynamic"
    height, width = size
    return f"{width}x{height}"


def serialised(model: ModelProto) -> bytes:
    """Return the bytes of a model file, which are the same for the same model."""
    return bytes(model.SerializeToString(deterministic=True))


def _without_shapes(model: ModelProto) -> bytes:
    """Return the bytes of a model without the shapes of intermediate tensors, for comparisons."""
    bare = copied(model)
    del bare.graph.value_info[:]
    return serialised(bare)
