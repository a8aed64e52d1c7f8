"""`detcli eval`: measures a model on labelled images.

run.py         detections beside labels
labels.py      COCO's and YOLO's data
data_yaml.py   YOLO's data.yaml
label_files.py the lines of YOLO's label files
classes.py     which class stands for which category
findings.py    what is odd about the data
evaluator.py   hotcoco: which detection found which object, outcomes, confusions
metrics.py     COCO's figures, from what hotcoco accumulated
confidence.py  F1 by confidence, and which confidences are the best
report.py      how good the model is, as JSON and as tables
figures.py     plots, and the page
deferred_page.py  images of a page, whose boxes follow after the run

Of two models:

comparison.py         both on the same images
comparison_report.py  which one is better, as JSON and as tables
comparison_page.py    the page
bootstrap.py          how sure a difference is
image_pairs.py        what both make of one image
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from detcli.cli.command import MODEL_ARGUMENT, command, override_option
from detcli.cli.completion import complete_model
from detcli.cli.console import print_line, print_message_counts, print_new_messages, set_verbosity
from detcli.cli.report import (
    REPORT_FORMAT,
    ReportFormat,
    choose_report_format,
    require_output,
    write_report,
)
from detcli.config.config import INPUT, OUTPUT, Config, Runtime, Settings, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_writable
from detcli.core import frozen
from detcli.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from detcli.commands.eval.comparison import Read
    from detcli.commands.eval.findings import Finding
    from detcli.core.timing import StageTimes
    from detcli.data.record import Record
    from detcli.model.file import ModelFile


ONE_MODEL = "leave it out, or leave out OTHER"
"""What to do about an option that makes no sense with two models."""


@frozen
class EvalRequest:
    """How a model runs, in a Config, and which data it is measured on."""

    config: Config
    other: str | None = option(
        None,
        "OTHER",
        "A second model, to be compared with MODEL on the same images.",
        complete=complete_model,
    )
    data: Path = option(
        REQUIRED,
        "--data DATA",
        "Labelled images: COCO's instances.json, YOLO's data.yaml, a list (.txt) or a folder.",
        panel=INPUT,
    )
    images: Path | None = option(
        None,
        "--images FOLDER",
        "Images of an instances.json; default: images beside it.",
        panel=INPUT,
    )
    split: str | None = option(
        None,
        "--split train|val|test",
        "Part of a data.yaml; default: val.",
        panel=INPUT,
    )
    advise: bool = option(
        False,
        "--advise",
        "Find the --conf with the best F1, overall and by class.",
        panel=OUTPUT,
        excludes={"other": ("--advise is about one model", ONE_MODEL)},
    )
    plots: Path | None = option(
        None,
        "--plots DIR",
        "Plot precision-recall, F1 by confidence and the confusion matrix, as PNG.",
        panel=OUTPUT,
        parse=parse_writable,
        excludes={"other": ("--plots draws the curves of one model", ONE_MODEL)},
    )


@command(
    MODEL_ARGUMENT,
    "max_pixels",
    "input_timeout",
    override_option(
        "save_coco",
        excludes={"other": ("--save-coco writes the detections of one model", ONE_MODEL)},
    ),
    Runtime,
    Settings,
    override_option(
        "conf",
        default=0.001,
        help="Evaluate scores above this; higher values lower mAP.",
        parse_fields=None,
        separator="",  # one number, not a list
    ),
    override_option(
        "max_det",
        help="Keep at most N detections in an image; COCO's evaluation takes the best 100 of a "
        "class.",
    ),
    override_option(
        "report",
        help="Write a page of what is false and what was missed to this folder: open its "
        "index.html.",
    ),
    "report_link",
    Verbosity,
    without="classes region",  # labels are of whole images
)
def evaluate(
    config: Config, request: EvalRequest, report_format: ReportFormat | None = REPORT_FORMAT
) -> None:
    """Measure a model on labelled images: COCO's mAP and recall, by class and size.

    Images run as in predict; hotcoco computes the figures, pycocotools' to the last digit.
    Images that cannot be read are left out and listed, and the exit code is 3.

    With OTHER, both models run on the same images with the same options: the mAP of both, the
    difference with a 95% interval by a bootstrap over images, the classes that decide, and the
    images that differ most.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    other_results = (config.outputs.report, config.outputs.save_coco, request.plots)
    require_output(other_results)
    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.eval.labels import open_dataset
    from detcli.run import set_up_process

    set_up_process()
    read = partial(open_dataset, request.data, request.images, request.split)
    if request.other is None:
        _evaluate_model(request, read, report_format)
    else:
        _compare_models(request, request.other, read, report_format)


def _locate(config: Config) -> "ModelFile":
    """Find the file of the model, and download it if need be."""
    from detcli.cli.console import download_progress
    from detcli.run import locate

    with download_progress() as show:
        return locate(config, show)


def _evaluate_model(request: EvalRequest, read: "Read", report_format: ReportFormat | None) -> None:
    """Measure one model, and write its report.

    Args:
        request: What the user asked for.
        read: Reads the labelled images, given the number of classes of the model.
        report_format: How the report is written.
    """
    from detcli.commands.eval.report import render
    from detcli.commands.eval.run import open_evaluation

    config = request.config
    model = _locate(config)
    with open_evaluation(config, model, read, request.plots) as evaluation:
        image_count = len(evaluation.samples)
        _detect_with_progress(evaluation.records(), image_count, config, lambda: evaluation.times)
        report = evaluation.report(request.data, request.plots, advised=request.advise)
    other_results = (config.outputs.report, config.outputs.save_coco, request.plots)
    write_report(report, report_format, render, other_results=other_results)
    is_json = choose_report_format(report_format) is ReportFormat.JSON
    if is_json and not config.verbosity.quiet:
        for finding in report.findings:
            _print_finding(finding)
    if report.failed:
        raise typer.Exit(InputError.exit_code)


def _compare_models(
    request: EvalRequest, other: str, read: "Read", report_format: ReportFormat | None
) -> None:
    """Measure two models on the same images, and write a report of how they differ.

    Args:
        request: What the user asked for.
        other: The second model.
        read: Reads the labelled images, given the number of classes of the model.
        report_format: How the report is written.
    """
    from detcli.commands.eval.comparison import open_comparison
    from detcli.commands.eval.comparison_report import (
        class_sentences,
        named_findings,
        render_comparison,
    )

    config = request.config
    configs = (config, replace(config, runtime=replace(config.runtime, model=other)))
    models = [_locate(config_of_side) for config_of_side in configs]
    with open_comparison(configs, models, read) as comparison:
        image_count = len(comparison.left.samples) + len(comparison.right.samples)
        _detect_with_progress(comparison.records(), image_count, config, lambda: comparison.times)
        report = comparison.report(request.data)
    other_results = (config.outputs.report,)
    write_report(report, report_format, render_comparison, other_results=other_results)
    is_json = choose_report_format(report_format) is ReportFormat.JSON
    if is_json and not config.verbosity.quiet:
        for prefix, finding in named_findings(report):
            _print_finding(finding, prefix)
        for sentence in class_sentences(report):
            print_line(sentence, label="warning:")
    if report.failed:
        raise typer.Exit(InputError.exit_code)


def _detect_with_progress(
    records: "Iterator[Record]",
    image_count: int,
    config: Config,
    stage_times: "Callable[[], StageTimes]",
) -> None:
    """Go through the records of all images, and show how far that is and how long it took.

    Args:
        records: Yields the record of each image as soon as it is there.
        image_count: How many records there are going to be.
        config: Says how much is printed.
        stage_times: Returns the times of the stages of the pipeline, after all images.
    """
    from detcli.cli.console import progress
    from detcli.run.counts import Counts

    quiet = config.verbosity.quiet
    counts = Counts()
    start_s = time.perf_counter()
    with progress(lambda: image_count, enabled=not quiet) as advance:
        for record in records:
            counts.add(record)
            print_new_messages(counts, quiet=quiet)
            advance()
    print_message_counts(counts)
    seconds = time.perf_counter() - start_s
    times = None
    if config.verbosity.verbose:
        times = stage_times()
    if not quiet:
        for line in counts.summary(seconds, times=times, above=config.settings.conf):
            print_line(line)
        print_line("comparing")


def _print_finding(finding: "Finding", prefix: str = "") -> None:
    """Print a warning or a failure for those who read a single figure out of the JSON."""
    if finding.level != "note":
        print_line(f"{prefix}{finding.level}: {finding.text()} ({finding.examples[0]})")
