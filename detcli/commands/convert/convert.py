"""Converts a model file into another, and writes it if it does the same."""

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from detcli.commands.convert.compare import CONFIDENCES, compare
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.report import Conversion, File
from detcli.commands.convert.steps import Pictures, Steps, serialised
from detcli.errors import DetcliWarning, UsageError
from detcli.files import AtomicFile, write_file
from detcli.model.loading import ModelFile
from detcli.source.item import Item


@dataclass(frozen=True, slots=True)
class Task:
    """A conversion to be done.

    Attributes:
        model: The file to convert.
        output: The file to write.
        force: It may exist; `model` may even be it.
        options: What is to become of the model.
        tolerance: How far the two may differ, by the names of `Tolerance`; for
            the rest, what was measured for such a conversion.
    """

    model: Path
    output: Path
    force: bool
    options: ConversionOptions
    tolerance: Mapping[str, float] = field(default_factory=dict)


def convert(task: Task, item: Item, pictures: Pictures | None = None) -> Conversion:
    """Convert a model; the file is written if the detections on a picture stay the same.

    Args:
        task: What is to be done.
        item: The picture that the old and the new model are compared on.
        pictures: What ranges of values are taken from, for half and int8; None for that picture.

    Raises:
        InputError: A picture cannot be read.
        InferenceError: A network fails.
        ModelError: The model cannot be used, or not be converted in this way.
        OutputError: The file cannot be written, or there is no room for a copy to compare.
        UsageError: It exists; or names, a size or a tolerance do not fit.
    """
    picture = item.load()
    item = Item(item.origin, lambda: picture)
    with _target(task) as target:
        old = ModelFile.read(task.model, task.options.box_format)
        known = old.detector().warnings
        for warning in known:
            warnings.warn(f"{task.model.name}: {warning}", DetcliWarning, stacklevel=2)
        steps = Steps(old.original, task.model.name, task.options, pictures or (lambda: [picture]))
        steps.run()
        converted = serialised(steps.model)
        with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
            path = Path(folder, task.output.name)
            write_file(path, converted)
            new = ModelFile(path, converted, task.options.box_format)
            for warning in new.detector().warnings:
                if warning not in known:
                    warnings.warn(f"{task.output.name}: {warning}", DetcliWarning, stacklevel=2)
            difference, failures = compare(old, new, task.options, item, task.tolerance)
        if difference.conf != CONFIDENCES[0]:
            found = max(difference.old, difference.new)
            warnings.warn(
                f"neither model finds anything above {CONFIDENCES[0]:g} in "
                f"{item.origin.source}; {found} "
                f"boxes above {difference.conf:g} were compared, which says little: --image FILE "
                "names a picture of what the model knows",
                DetcliWarning,
                stacklevel=2,
            )
        if not failures:
            target.write(converted)
            target.commit()
    return Conversion(
        model=_described(old, task.model),
        output=_described(new, task.output),
        written=not failures,
        steps=tuple(steps.done),
        difference=difference,
        failures=failures,
    )


@contextlib.contextmanager
def _target(task: Task) -> Iterator[AtomicFile]:
    """The file to write; it is as it was unless it is committed.

    Raises:
        OutputError: The folder cannot be written to.
        UsageError: It is there already.
    """
    if task.output.is_dir():
        raise UsageError(f"{task.output} is a folder", "name a file in it")
    if task.output.is_file() and not task.force:
        same = task.model.exists() and task.model.samefile(task.output)
        raise UsageError(
            f"{task.output} is the model itself" if same else f"{task.output} is there already",
            "name another file; --force writes over it",
        )
    target = AtomicFile(task.output, binary=True)
    try:
        yield target
    finally:
        target.discard()


def _described(file: ModelFile, path: Path) -> File:
    contract = file.detector()
    return File(
        path=str(path),
        sha256=file.sha256,
        bytes=len(file.content) + sum(external.bytes for external in file.external),
        size=contract.input_size,
        batch=contract.batch,
    )
