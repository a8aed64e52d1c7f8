"""The command `detcli inspect`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device
from detcli.commands.shared.defaults_file import DEVICE_VARIABLE
from detcli.commands.shared.layout import DEVICES, INPUT
from detcli.commands.shared.messages import report, set_verbosity
from detcli.commands.shared.options import option
from detcli.errors import DetcliError, InputError, ModelError, UsageError

if TYPE_CHECKING:
    from detcli.backend.device import Device
    from detcli.commands.inspect.interpretations import Part
    from detcli.commands.inspect.report import Inspection, TrialReport
    from detcli.commands.inspect.trial import Evidence, Trial
    from detcli.model.zoo import LocatedModel
    from detcli.settings import Settings


def inspect(  # noqa: PLR0913 - one parameter an option
    model: options.ModelFileOption,
    *,
    pictures: Annotated[
        list[str] | None,
        option(
            "PICTURES",
            "Try the readings that the file leaves open on up to 16 of these (files, a folder, a "
            "video), and rank them by how consistent the detections are; repeatable.",
            "--try",
            show_default=False,
            panel=INPUT,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        option(
            "DATA",
            "The same on up to 64 labelled pictures, as eval reads them, ranked by mAP.",
            "--data",
            panel=INPUT,
        ),
    ] = None,
    images: options.ImagesOption = None,
    split: options.SplitOption = None,
    parts: Annotated[
        str | None,
        option(
            "LIST",
            "With --try or --data: what to try, of values, channels, boxes and resize; default: "
            "what neither the file nor an option says.",
            panel=INPUT,
        ),
    ] = None,
    device: Annotated[
        str,
        option(
            "DEVICE",
            "Where --try and --data run: auto, cpu, cuda, cuda:N, tensorrt, tensorrt:N, openvino, "
            "openvino:GPU or openvino:NPU; of a comma-separated list the first.",
            panel=DEVICES,
            envvar=DEVICE_VARIABLE,
            autocompletion=complete_device,
        ),
    ] = "auto",
    imgsz: options.ImageSizeOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    boxes_only: options.BoxesOnlyOption = False,
    names: options.NamesOption = None,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Describe a model: layout, classes, size, where it runs, what deserves attention.

    A file that cannot be used is reported as far as it can be read, and the exit code is 4.
    Nothing is opened but the model's folder and, for one in onnx/, Hugging Face's JSON above it.
    --try and --data run the model but change nothing: they print the options to use.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    from detcli.backend.device import Device
    from detcli.commands.inspect.examine import examine
    from detcli.commands.inspect.render import render
    from detcli.commands.shared.reports import write_report
    from detcli.commands.shared.setup import find_model

    where, *_ = Device.parse_list(device)
    chosen = _parts(parts, pictures, data, images, split)
    located = find_model(model)
    inspection = examine(
        located.path,
        box_format=box_format,
        preprocess=preprocess,
        boxes_only=boxes_only,
        imgsz=imgsz,
        names=names,
    )
    if (pictures or data) and (inspection.problem is None or inspection.detector is None):
        from detcli.settings import Settings

        settings = Settings(
            imgsz=imgsz,
            names=names,
            box_format=box_format,
            preprocess=preprocess,
            boxes_only=boxes_only,
        )
        plan = _plan(inspection, located, where, settings, chosen)
        if plan is not None:
            tried = _run(plan, pictures or [], data, images, split, quiet=quiet)
            inspection = replace(inspection, trial=tried)
    write_report(inspection, report_format, render)
    if inspection.problem is not None:
        raise ModelError(inspection.problem.message, inspection.problem.hint)
    if inspection.trial is not None and inspection.trial.failed:
        for one in inspection.trial.failed:
            report(DetcliError(one.error), one.source)
        raise typer.Exit(InputError.exit_code)


def _parts(
    text: str | None,
    pictures: list[str] | None,
    data: Path | None,
    images: Path | None,
    split: str | None,
) -> "tuple[Part, ...] | None":
    """What --parts says to try; None for what the file does not say.

    Raises:
        UsageError: An option lacks another that it needs, or excludes one.
    """
    if pictures and data is not None:
        raise UsageError("--try and --data are mutually exclusive", "labels tell more: keep --data")
    if data is None and (images is not None or split is not None):
        lone = "--split" if images is None else "--images"
        raise UsageError(f"{lone} needs --data", "name the labelled pictures")
    if text is None:
        return None
    if not pictures and data is None:
        raise UsageError("--parts needs --try or --data", "name pictures to try on")
    from detcli.commands.inspect.interpretations import parse_parts

    return parse_parts(text)


def _plan(
    inspection: "Inspection",
    model: "LocatedModel",
    device: "Device",
    settings: "Settings",
    parts: "tuple[Part, ...] | None",
) -> "Trial | None":
    """Plan the trial; None if the file is not a detector, as its report then says."""
    from detcli.commands.inspect.trial import Trial

    try:
        return Trial.plan(model, device, settings, parts)
    except ModelError:
        if inspection.problem is None:
            raise
        return None


def _run(  # noqa: PLR0913 - the options that say what to try on
    plan: "Trial",
    pictures: list[str],
    data: Path | None,
    images: Path | None,
    split: str | None,
    *,
    quiet: bool,
) -> "TrialReport":
    """Run what is to be tried, on labelled pictures or others, with a bar."""
    from detcli.commands.shared.progress import progress
    from detcli.commands.shared.setup import set_up_process

    set_up_process()
    evidence: Evidence
    if data is not None:
        from detcli.commands.inspect.labelled import Labelled

        evidence = Labelled.open(data, images, split, plan.contract)
    else:
        from detcli.commands.inspect.consistency import SelfConsistency
        from detcli.source.sources import Sources

        with Sources(pictures) as sources:
            evidence = SelfConsistency.of(sources)
    with progress(lambda: plan.count * len(evidence.pictures), wanted=not quiet) as advance:
        return plan.run(evidence, advance)
