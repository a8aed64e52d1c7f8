"""`detcli eval`: measures a model on labelled images.

run.py         detections beside labels
labels.py      COCO's and YOLO's data
data_yaml.py   YOLO's data.yaml
label_files.py the lines of YOLO's label files
classes.py     which class stands for which category
findings.py    what is odd about the data
evaluator.py   hotcoco's figures, outcomes, confusions
confidence.py  F1 by confidence, and which confidences are the best
report.py      how good the model is, as JSON and as tables
figures.py     plots, and the page
"""

import time
from functools import partial
from pathlib import Path

import typer

from detcli.cli.command import MODEL_ARGUMENT, command, override_option
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


@frozen
class EvalRequest:
    """How a model runs, in a Config, and which data it is measured on."""

    config: Config
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
    )
    plots: Path | None = option(
        None,
        "--plots DIR",
        "Plot precision-recall, F1 by confidence and the confusion matrix, as PNG.",
        panel=OUTPUT,
        parse=parse_writable,
    )


@command(
    MODEL_ARGUMENT,
    "max_pixels",
    "input_timeout",
    "save_coco",
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
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    other_results = (config.outputs.report, config.outputs.save_coco, request.plots)
    require_output(other_results)
    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.cli.console import download_progress, progress
    from detcli.commands.eval.labels import open_dataset
    from detcli.commands.eval.report import render
    from detcli.commands.eval.run import open_evaluation
    from detcli.run import locate, set_up_process
    from detcli.run.counts import Counts

    set_up_process()
    with download_progress() as show:
        model = locate(config, show)
    read = partial(open_dataset, request.data, request.images, request.split)
    with open_evaluation(config, model, read, request.plots) as evaluation:
        counts = Counts()
        start_s = time.perf_counter()
        images = len(evaluation.samples)
        with progress(lambda: images, enabled=not quiet) as advance:
            for record in evaluation.records():
                counts.add(record)
                print_new_messages(counts, quiet=quiet)
                advance()
        print_message_counts(counts)
        seconds = time.perf_counter() - start_s
        times = None
        if config.verbosity.verbose:
            times = evaluation.times
        if not quiet:
            for line in counts.summary(seconds, times=times):
                print_line(line)
            print_line("comparing")
        report = evaluation.report(request.data, request.plots, advised=request.advise)
    write_report(report, report_format, render, other_results=other_results)
    if not quiet and choose_report_format(report_format) is ReportFormat.JSON:
        for finding in report.findings:  # for those who read a single figure out of the JSON
            if finding.level != "note":
                print_line(f"{finding.level}: {finding.text()} ({finding.examples[0]})")
    if report.failed:
        raise typer.Exit(InputError.exit_code)
