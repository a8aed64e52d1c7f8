"""Converts a model file, and writes the result if its detections stay the same."""

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from onnx import ModelProto, load_model_from_string

from detcli.commands.convert.comparison import CONFIDENCES, Difference, compare_models
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.steps import Images, Step, Steps, serialised
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, InferenceError, InputError, ModelError, UsageError
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.model.contract import Contract
from detcli.model.editing import names_entry, set_metadata
from detcli.model.file import ModelFile, damage_as_model_error
from detcli.model.graph import shape
from detcli.model.metadata import BOX_FORMAT_KEY, FAMILY_KEY
from detcli.model.preprocessing import METADATA_KEY, format_preprocessing
from detcli.model.recognise import read_graph
from detcli.source.decode import BUILT_IN
from detcli.source.loading import Item, load_in_time
from detcli.source.reading import load_file
from detcli.storage.files import AtomicFile, DirectFile, open_output, write_output

MAX_IMAGES = 512  # used for calibration; more would hardly widen the ranges


@frozen
class File:
    """A model file: the one that was converted, or the result."""

    path: str
    sha256: str
    bytes: int  # external data included
    size: tuple[int, int] | None  # height and width of the input; None for a dynamic graph
    batch: int | None  # None for a dynamic batch


@frozen
class Conversion:
    """What a conversion did to a model, and whether the result was written."""

    model: File
    output: File  # the result, written or not
    written: bool
    steps: tuple[Step, ...]
    difference: Difference
    failures: tuple[str, ...]  # why nothing was written


def built_in() -> Item:
    """Return the image that is part of detcli, for comparing models without --image."""
    return Item(Origin(BUILT_IN.name), lambda: load_file(BUILT_IN))


def load_images(items: Iterable[Item], advance: Callable[[], None]) -> Iterator[Image]:
    """Load images for calibration, the first MAX_IMAGES at most.

    An image that cannot be read is skipped with a warning.

    Args:
        items: The images to load.
        advance: Called after each of them, for a progress bar.
    """
    for item in itertools.islice(items, MAX_IMAGES):
        try:
            image = load_in_time(item)
        except InputError as error:
            _warn(f"{item.origin.source}: {error}")
        else:
            for warning in image.warnings:
                _warn(f"{item.origin.source}: {warning}")
            yield image
        advance()


def convert(
    model: ModelFile,
    options: ConversionOptions,
    item: Item,
    images: Images | None = None,
) -> Conversion:
    """Convert a model, and write the result if the detections on an image stay the same.

    The result is first written to a temporary folder, and both models are run. Only if their
    detections differ by no more than the tolerance is the output file written.

    Args:
        model: The model to convert.
        options: What to change, and where to write the result.
        item: The image that both models run on.
        images: Returns the images for the calibration of half and int8; None to calibrate on
            `item`.

    Returns:
        What was done, how the detections differ, and why nothing was written if so.
    """
    source = item.origin.source
    output = options.output
    settings = options.config.settings
    try:
        image = load_in_time(item)
    except InputError as error:
        raise error.about(source) from error
    item = Item(item.origin, lambda: image)  # so that it is loaded once
    target = _open_output(model.path, output, force=options.force)
    try:
        with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
            original = ModelFile.read(model.path, settings.box_format, settings.preprocess)
            old = _with_named_family(original, options.entries, Path(folder, "given"))
            old_warnings = old.detector().warnings
            for warning in old_warnings:
                _warn(f"{model.path.name}: {warning}")
            calibration_images = images or (lambda: [image])
            steps = Steps(_with_contract(old), model.path.name, options, calibration_images)
            with damage_as_model_error(model.path):  # converters raise errors of any type
                steps.run()
            converted = serialised(steps.model)
            new_path = Path(folder, output.name)
            write_output(new_path, converted)
            new = ModelFile.read(new_path, settings.box_format, content=converted)
            batch_axis_warning = _batch_axis_warning(original, steps.model)
            if batch_axis_warning:
                _warn(f"{output.name}: {batch_axis_warning}")
            for warning in new.detector().warnings:
                if warning not in old_warnings:
                    _warn(f"{output.name}: {warning}")
            with _explain_batch_errors(options, model.path.name):
                difference, failures = compare_models(old, new, options, item)
            # The original may not be recognised without the family that the user names. So the
            # contract is that of the copy which has it.
            before = _describe_file(original, model.path, old.detector())
            after = _describe_file(new, output, new.detector())
        if difference.conf != CONFIDENCES[0]:
            _warn(_weak_evidence(difference))
        if not failures:
            target.write(converted)
            target.commit()
    finally:
        target.discard()
    return Conversion(
        model=before,
        output=after,
        written=not failures,
        steps=tuple(steps.done),
        difference=difference,
        failures=failures,
    )


def _batch_axis_warning(file: ModelFile, converted: ModelProto) -> str:
    """Return a warning if a conversion added an axis for the batch to an output of a model.

    A graph may take a single image, without an axis for the batch. detcli then adds this axis, of
    size 1, in front of the others. Other programs that read the outputs have to know about it.

    Args:
        file: The file before the conversion.
        converted: The model after it.

    Returns:
        A sentence about the first output that has a new axis; empty if there is none.
    """
    old_graph = load_model_from_string(file.content).graph
    old_shapes = {output.name: shape(output) for output in old_graph.output}
    for output in converted.graph.output:
        old_dims = old_shapes.get(output.name, [])
        dims = shape(output)
        has_new_axis = dims == [1, *old_dims]
        if old_dims and has_new_axis:
            return (
                f"its outputs have an axis for the batch now: {output.name} is {dims}, and was "
                f"{old_dims}"
            )
    return ""


@contextlib.contextmanager
def _explain_batch_errors(options: ConversionOptions, model_name: str) -> Iterator[None]:
    """If --batch is set, blame it for an error of the converted network that the block runs.

    Nodes of a graph may hold the size of the batch that it was exported with. That shows only when
    the network runs with a different size.

    Args:
        options: The options, with --batch.
        model_name: The name of the model in the error.

    Raises:
        ModelError: The network failed, and --batch is set.
        InferenceError: It failed without --batch.
    """
    try:
        yield
    except InferenceError as error:
        if options.batch is None:
            raise
        export_again = "export the model again with that batch, or with dynamic axes"
        if options.batch == "dynamic":
            export_again = "export the model again with a dynamic batch axis"
        raise ModelError(
            f"--batch: the nodes of {model_name} only work for the batch that it was exported with",
            f"leave it out, or {export_again}",
        ) from error


def _weak_evidence(difference: Difference) -> str:
    """Return the warning for a comparison with fewer confident detections than it should have.

    Neither model finds an object above the usual confidence, so boxes above a lower one were
    compared.
    """
    box_count = max(difference.old, difference.new)
    return (
        f"neither model finds anything above {CONFIDENCES[0]:g} in {difference.source}; "
        f"{box_count} boxes above {difference.conf:g} were compared, which is weak evidence: use "
        "--image FILE with objects the model knows"
    )


def _warn(text: str) -> None:
    """Issue a warning of detcli, which the command line prints."""
    warnings.warn(text, DetcliWarning, stacklevel=3)


def _open_output(model: Path, output: Path, *, force: bool) -> AtomicFile | DirectFile:
    """Open the file for the converted model, or refuse to overwrite one without --force.

    The caller has to call `commit` on the result. Until then, a file that exists stays as it is.

    Args:
        model: The file of the model that is converted.
        output: The file to write.
        force: Whether to overwrite a file that exists.

    Raises:
        UsageError: The file exists and `force` is not set, or it is a folder.
    """
    if output.is_dir():
        raise UsageError(f"{output} is a folder", "name a file in it")
    if output.is_file() and not force:
        problem = f"{output} already exists"
        if model.exists() and model.samefile(output):
            problem = f"{output} is the model itself"
        raise UsageError(problem, "name another file, or overwrite it with --force")
    return open_output(output)


def _with_named_family(file: ModelFile, entries: dict[str, str], folder: Path) -> ModelFile:
    """Write a copy of a model with the family that --metadata names, and read that copy.

    Models of some families are recognised as detectors only if their metadata names the family.
    Without a family in --metadata, nothing is written and `file` is returned.

    Args:
        file: The model.
        entries: The entries of the metadata that the user sets with --metadata.
        folder: A folder for the copy, which does not exist yet.
    """
    if FAMILY_KEY not in entries:
        return file

    folder.mkdir()
    path = folder / file.path.name
    model_with_family = set_metadata(file.original, {FAMILY_KEY: entries[FAMILY_KEY]})
    write_output(path, serialised(model_with_family))
    return ModelFile.read(path, file.box_format, file.preprocess)


def _describe_file(file: ModelFile, path: Path, contract: Contract) -> File:
    """Collect what the report of the conversion says about a model file.

    Args:
        file: The file.
        path: Where it is or will be, for the report.
        contract: What the model takes and gives as a detector.
    """
    size_bytes = len(file.content) + sum(external.bytes for external in file.external)
    return File(
        path=str(path),
        sha256=file.sha256,
        bytes=size_bytes,
        size=contract.input_size,
        batch=contract.batch,
    )


def _with_contract(file: ModelFile) -> ModelProto:
    """Write into a model's metadata what only the user or files beside the model say about it.

    The converted file stands alone, so it has to hold the class names, the preprocessing, the size
    of the input and the format of the boxes. What the graph shows without help is not written.

    Args:
        file: The model, read with the user's options and the files beside it.

    Returns:
        The model with these entries; unchanged if the graph shows everything.
    """
    contract = file.detector()
    graph_contract = read_graph(file.model, file.path.name, file.box_format).contract
    entries: dict[str, str] = {}
    if file.box_format is not None:
        entries[BOX_FORMAT_KEY] = contract.box_format
    if (
        graph_contract.preprocessing != contract.preprocessing
        or graph_contract.unknown_preprocessing != contract.unknown_preprocessing
    ):
        entries[METADATA_KEY] = format_preprocessing(contract.preprocessing)
    if graph_contract.names != contract.names:
        entries |= names_entry(contract.names)
    if graph_contract.default_size != contract.default_size:
        entries["imgsz"] = str(list(contract.default_size))
    if not entries:
        return file.original
    return set_metadata(file.original, entries)
