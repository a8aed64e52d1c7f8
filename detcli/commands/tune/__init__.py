"""`detcli tune`: the fastest way to the same boxes, measured on this machine.

run.py             the configurations, each tried in its own processes, in rounds
configurations.py  which configurations are tried
process.py         a command of detcli, run in a process of its own
report.py          what was found, the choice, the user's file, the chart
"""

import tempfile
import warnings
from pathlib import Path

from detcli.cli.command import DECIDING, MODEL_ARGUMENT, command, override_option
from detcli.cli.console import download_progress, print_line, progress, set_verbosity
from detcli.cli.defaults import collect_values, read_defaults
from detcli.cli.report import REPORT_FORMAT, ReportFormat, require_output, write_report
from detcli.config.config import INPUT, OUTPUT, Config, Verbosity
from detcli.config.option import option, options_of
from detcli.config.values import parse_duration, parse_tolerance
from detcli.core.errors import CheckError, DetcliWarning


@command(
    MODEL_ARGUMENT,
    override_option(
        "device", shared=False, help="Try only these devices; default: auto, all there are."
    ),
    override_option(
        "conf",
        help="Compare detections with scores above this; default: what the model recommends, or "
        "0.25.",
        parse_fields=None,
        separator="",  # one number, not a list
    ),
    *("nms", "imgsz", "box_format", "preprocess"),
    override_option(
        "report",
        help="Write a page to this folder that shows what the fastest way detects differently. "
        "Open its index.html.",
    ),
    Verbosity,
    examples="""
detcli tune yolov10n pics
detcli tune yolov10n pics --write
detcli tune yolov10n --data coco/instances.json
""",
)
def tune(
    *,
    config: Config,
    images: tuple[str, ...] = option(
        (),
        "IMAGES...",
        "Images to compare and to time on: files, folders, quoted glob patterns; default: a "
        "built-in image.",
    ),
    data: Path | None = option(
        None,
        "--data DATA",
        "Labelled images, as in eval: adds mAP. Without IMAGES, those in its folder images.",
        panel=INPUT,
    ),
    tolerance: dict[str, float] | None = option(
        None,
        "--tolerance LIST",
        "How far boxes may differ from those of the model on the CPU, as verify counts them; "
        "default: boxes=0.5%,score=0.05,corner=4.",
        parse=parse_tolerance,
        separator=",",
    ),
    budget: float = option(
        300,
        "--budget TIME",
        "Measure for about this long: 90s, 5min, 1h. A longer one measures more exactly.",
        range=(0, None),
        parse=parse_duration,
    ),
    write: bool = option(
        False,
        "--write",
        "Keep the choice in detcli.toml: predict uses it for this model on this machine.",
        panel=OUTPUT,
    ),
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Find the fastest way to run a model here that keeps its boxes.

    Devices, precisions, batch sizes and workers are tried in turns, each in a process of its own,
    and their boxes are compared with those of the model on the CPU. What does not work is listed
    with the reason.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    other_results = (config.outputs.report, write)
    require_output(other_results)
    # What follows loads OpenCV, onnx and ONNX Runtime, which --help does not need.
    from detcli.commands.tune.report import render, writable_defaults, write_defaults
    from detcli.commands.tune.run import LATE, MORE_TIME, Tuning
    from detcli.core.opencv import silence_opencv
    from detcli.page.one_file import open_page
    from detcli.run import locate
    from detcli.source.guard import InputGuard

    silence_opencv()
    page = config.outputs.report
    inputs = InputGuard([config.runtime.model, *images])
    # Errors now, not after the measurement.
    if page is not None:
        open_page(page, inputs).close()
    defaults = None
    if write:
        defaults = writable_defaults()
    with download_progress() as show:
        located = locate(config, show)
    with tempfile.TemporaryDirectory(prefix="detcli-", ignore_cleanup_errors=True) as folder:
        tuning = Tuning(config, located, Path(folder), images, tolerance, budget, data)
        with progress(
            lambda: tuning.steps,
            enabled=not quiet,
            status=lambda: f"{max(0.0, tuning.left_s):.0f} s left",
        ) as advance:
            tuning.run(advance)
        report = tuning.report()
        write_report(report, report_format, render, other_results=other_results)
        sentences = []  # what was written
        if page is not None:
            sentences.append(tuning.write_page(page))
        if defaults is not None:
            untried = [row.name for row in report.rows if row.error == LATE and row.way.is_plain]
            if untried:
                reason = f"the choice is not written: the time ended before {', '.join(untried)}"
                raise CheckError(reason, MORE_TIME)
            write_defaults(defaults, report)
            sentences.append(f"wrote the choice to {defaults}: predict uses it for {report.model}")
            options = options_of(Config)
            deciding = {name: options[name] for name in DECIDING}
            for name, value in collect_values(deciding, {}, read_defaults()).items():
                sentences.append(f"{value.source} sets {name}, too, and overrides the choice")
    for doubt in report.doubts:
        warnings.warn(doubt, DetcliWarning, stacklevel=1)
    if not quiet:
        for sentence in sentences:
            print_line(sentence)
