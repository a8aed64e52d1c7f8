"""`detcli eval`: measures a model on labelled images.

run.py         detections beside labels
labels.py      COCO's and YOLO's data
data_yaml.py   YOLO's data.yaml
label_files.py the lines of YOLO's label files
classes.py     which class stands for which category
findings.py    what is odd about the data
evaluator.py   hotcoco: which detection found which object, outcomes, confusions
matches.py     what a match is, and what becomes of a box
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
    from detcli.commands.eval.comparison import ComparisonOfModels, DatasetReader
    from detcli.commands.eval.findings import Finding
    from detcli.commands.eval.run import Evaluation
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
        # One number for all classes, not a list such as 0.5,person=0.3.
        parse_fields=None,
        separator="",
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
    # If standard output is closed and no file was asked for, nobody would get a result.
    require_output((config.outputs.report, config.outputs.save_coco, request.plots))

    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.eval.labels import open_dataset
    from detcli.run import set_up_process

    set_up_process()
    read_dataset = partial(open_dataset, request.data, request.images, request.split)

    if request.other is None:
        _evaluate_model(request, read_dataset, report_format)
    else:
        _compare_models(
            request,
            other_model=request.other,
            read_dataset=read_dataset,
            report_format=report_format,
        )


def _locate(config: Config) -> "ModelFile":
    """Find the file of the model, and download it if need be."""
    from detcli.cli.console import download_progress
    from detcli.run import locate

    with download_progress() as show:
        return locate(config, show)


def _evaluate_model(
    request: EvalRequest, read_dataset: "DatasetReader", report_format: ReportFormat | None
) -> None:
    """Measure one model, and write its report to standard output.

    Args:
        request: What the user asked for.
        read_dataset: Reads the labelled images, given the number of classes of the model.
        report_format: How the report is written.

    Raises:
        typer.Exit: Some images could not be read.
    """
    from detcli.commands.eval.report import render
    from detcli.commands.eval.run import open_evaluation

    config = request.config
    model = _locate(config)
    with open_evaluation(config, model, read_dataset, plots=request.plots) as evaluation:
        _detect_with_progress(evaluation, len(evaluation.samples), config)
        report = evaluation.report(request.data, request.plots, advised=request.advise)

    output_paths = (config.outputs.report, config.outputs.save_coco, request.plots)
    write_report(report, report_format, render, other_results=output_paths)
    if _findings_need_printing(report_format, config):
        for finding in report.findings:
            _print_finding(finding)

    if report.failed:
        raise typer.Exit(InputError.exit_code)


def _compare_models(
    request: EvalRequest,
    other_model: str,
    read_dataset: "DatasetReader",
    report_format: ReportFormat | None,
) -> None:
    """Measure two models on the same images, and write a report of how they differ.

    The report goes to standard output.

    Args:
        request: What the user asked for, with the first model.
        other_model: The path or name of the second model.
        read_dataset: Reads the labelled images, given the number of classes of a model.
        report_format: How the report is written.

    Raises:
        typer.Exit: Some images could not be read by one of the models.
    """
    from detcli.commands.eval.comparison import open_comparison
    from detcli.commands.eval.comparison_report import (
        class_sentences,
        named_findings,
        render_comparison,
    )

    config = request.config
    # Both models run with the same options.
    other_runtime = replace(config.runtime, model=other_model)
    configs = (config, replace(config, runtime=other_runtime))
    models = [_locate(model_config) for model_config in configs]

    with open_comparison(configs, models, read_dataset) as comparison:
        image_count = len(comparison.left.samples) + len(comparison.right.samples)
        _detect_with_progress(comparison, image_count, config)
        report = comparison.report(request.data)

    output_paths = (config.outputs.report,)
    write_report(report, report_format, render_comparison, other_results=output_paths)
    if _findings_need_printing(report_format, config):
        for prefix, finding in named_findings(report):
            _print_finding(finding, prefix)
        for sentence in class_sentences(report):
            print_line(sentence, label="warning:")

    if report.failed:
        raise typer.Exit(InputError.exit_code)


def _findings_need_printing(report_format: ReportFormat | None, config: Config) -> bool:
    """Return whether what is odd about the data is printed on stderr, as the report is JSON.

    Tables show it themselves, but someone who reads a single figure out of the JSON would miss it.
    """
    is_json = choose_report_format(report_format) is ReportFormat.JSON
    return is_json and not config.verbosity.quiet


def _detect_with_progress(
    evaluation: "Evaluation | ComparisonOfModels", image_count: int, config: Config
) -> None:
    """Detect objects in all images, and print progress, warnings and a summary on stderr.

    The last line, "comparing", says that the detections are now compared with the labels.

    Args:
        evaluation: The model with its images, or two models.
        image_count: How often an image is going to run: twice if there are two models.
        config: Says how much is printed.
    """
    from detcli.cli.console import progress
    from detcli.run.counts import Counts

    quiet = config.verbosity.quiet
    counts = Counts()
    start_s = time.perf_counter()
    with progress(lambda: image_count, enabled=not quiet) as advance:
        for record in evaluation.records():
            counts.add(record)
            print_new_messages(counts, quiet=quiet)
            advance()
    print_message_counts(counts)
    duration_s = time.perf_counter() - start_s

    stage_times = None
    if config.verbosity.verbose:
        stage_times = evaluation.times
    if not quiet:
        for line in counts.summary(duration_s, times=stage_times, above=config.settings.conf):
            print_line(line)
        print_line("comparing")


def _print_finding(finding: "Finding", prefix: str = "") -> None:
    """Print a warning or a failure with an example on stderr; notes are left out.

    Args:
        finding: What is odd about the data.
        prefix: What the line begins with, such as "left: " for the first of two models.
    """
    if finding.level != "note":
        print_line(f"{prefix}{finding.level}: {finding.text()} ({finding.examples[0]})")
