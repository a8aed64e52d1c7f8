"""`detcli eval`: measures a model on labelled pictures.

request.py     what is asked for
run.py         detections beside labels
labels.py      COCO's and YOLO's data, classes mapped, findings
evaluator.py   hotcoco's figures, outcomes, advice
report.py      how good the model is, as JSON and as tables
figures.py     plots, and the page
"""

import time

import typer

from detcli.cli.messages import say, set_verbosity, tell
from detcli.cli.options import MODEL_ARGUMENT, adapted, command
from detcli.cli.report import (
    REPORT_FORMAT,
    ReportFormat,
    choose_report_format,
    write_report,
)
from detcli.commands.eval.request import EvalRequest
from detcli.core.config import Config, Messages, Running, Settings
from detcli.core.errors import InputError


@command(
    MODEL_ARGUMENT,
    *("max_pixels", "input_timeout", "save_coco"),
    Running,
    Settings,
    adapted(
        "conf",
        default=0.001,
        help="Evaluate scores above this; higher values lower mAP.",
        spread=None,
    ),
    adapted(
        "max_det",
        help="Keep at most N detections in a picture; COCO's evaluation takes the best 100 of a "
        "class.",
    ),
    adapted(
        "report",
        help="Write a page of what is false and what was missed to this folder: open its "
        "index.html.",
    ),
    Messages,
    without="classes",
)
def evaluate(
    config: Config, request: EvalRequest, report_format: ReportFormat | None = REPORT_FORMAT
) -> None:
    """Measure a model on labelled pictures: COCO's mAP and recall, by class and size.

    Pictures run as in predict; hotcoco computes the figures, pycocotools' to the last digit.
    Pictures that cannot be read are left out and listed, and the exit code is 3.
    """
    quiet = config.messages.quiet
    set_verbosity(quiet=quiet, verbose=config.messages.verbose)
    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.cli.messages import fetching, progress
    from detcli.commands.eval.report import render
    from detcli.commands.eval.run import open_evaluation
    from detcli.run import locate, set_up_process
    from detcli.run.counts import Counts

    set_up_process()
    with fetching() as show:
        model = locate(config, show)
    with open_evaluation(request, model) as evaluation:
        counts, start_s = Counts(), time.perf_counter()
        pictures = len(evaluation.collector.samples)
        with progress(lambda: pictures, wanted=not quiet) as advance:
            for record in evaluation.run():
                counts.add(record)
                tell(counts.messages, quiet=quiet)
                advance()
        seconds = time.perf_counter() - start_s
        for line in () if quiet else counts.summary(seconds, times=evaluation.pipeline.times):
            say(line)
        if not quiet:
            say("comparing")
        report = evaluation.report()
    write_report(report, report_format, render)
    if not quiet and choose_report_format(report_format) is ReportFormat.JSON:
        for one in report.findings:  # for those who read a single figure out of the JSON
            if one.level != "note":
                say(f"{one.level}: {one.text()} ({one.examples[0]})")
    if report.failed:
        raise typer.Exit(InputError.exit_code)
