"""`detcli eval`: measures a model on labelled pictures.

run.py         detections beside labels
labels.py      COCO's and YOLO's data, classes mapped, findings
evaluator.py   hotcoco's figures, outcomes, advice
report.py      how good the model is, as JSON and as tables
figures.py     plots, and the page
"""

from pathlib import Path
from typing import Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.formats import require_disk
from detcli.commands.shared.layout import OUTPUT, SELECTION
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.options import flag, option
from detcli.commands.shared.reports import ReportFormat, choose_report_format
from detcli.errors import InputError


def evaluate(  # noqa: PLR0913 - one parameter per option; they become objects at once
    model: options.ModelFileOption,
    *,
    data: options.DataOption,
    images: options.ImagesOption = None,
    split: options.SplitOption = None,
    device: options.DeviceOption = "auto",
    conf: Annotated[
        float,
        option("SCORE", "Evaluate scores above this; higher values lower mAP.", panel=SELECTION),
    ] = 0.001,
    max_det: Annotated[
        int,
        option(
            "N",
            "Keep at most N detections in a picture; COCO's evaluation takes the best 100 of a "
            "class.",
            panel=SELECTION,
        ),
    ] = 300,
    nms: options.NmsOption = None,
    unique: options.UniqueOption = False,
    imgsz: options.ImageSizeOption = None,
    rect: options.RectOption = False,
    names: options.NamesOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    boxes_only: options.BoxesOnlyOption = False,
    tile: options.TileOption = None,
    max_pixels: options.MaxPixelsOption = 200_000_000,
    input_timeout: options.InputTimeoutOption = 60,
    batch: options.BatchOption = None,
    workers: options.WorkersOption = None,
    cuda_graph: options.CudaGraphOption = None,
    gpu_mem_limit: options.MemoryLimitOption = None,
    half: options.HalfOption = False,
    advise: Annotated[
        bool,
        flag("Find the --conf with the best F1, overall and by class.", "--advise", panel=OUTPUT),
    ] = False,
    plots: Annotated[
        Path | None,
        option(
            "DIR",
            "Plot precision-recall, F1 by confidence and the confusion matrix, as PNG.",
            panel=OUTPUT,
        ),
    ] = None,
    save_coco: options.SaveCocoOption = None,
    report_page: Annotated[
        Path | None,
        option(
            "DIR",
            "Write a page of what is false and what was missed to this folder: open its "
            "index.html.",
            "--report",
            panel=OUTPUT,
        ),
    ] = None,
    report_format: options.ReportFormatOption = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Measure a model on labelled pictures: COCO's mAP and recall, by class and size.

    Pictures run as in predict; hotcoco computes the figures, pycocotools' to the last digit.
    Pictures that cannot be read are left out and listed, and the exit code is 3.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.backend.device import available_cores
    from detcli.commands.eval.report import render
    from detcli.commands.eval.run import EvalRequest, open_evaluation
    from detcli.commands.shared.progress import Tally, progress
    from detcli.commands.shared.reports import write_report
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.source.decode import DecodeOptions

    set_up_process()
    run = run_options(
        model,
        device,
        batch=batch,
        workers=available_cores() if workers is None else workers,
        cuda_graph=cuda_graph,
        gpu_mem_limit=gpu_mem_limit,
        half=half,
        conf=conf,
        max_det=max_det,
        nms=nms,
        unique=unique,
        imgsz=imgsz,
        rect=rect,
        names=names,
        box_format=box_format,
        preprocess=preprocess,
        boxes_only=boxes_only,
        tile=tile,
    )
    require_disk({"--save-coco": save_coco, "--plots": plots, "--report": report_page})
    request = EvalRequest(
        run=run,
        model=run.find_model(),
        data=data,
        images=images,
        split=split,
        decode=DecodeOptions(max_pixels=max_pixels, timeout_s=input_timeout),
        advise=advise,
        plots=plots,
        coco=save_coco,
        page=report_page,
    )
    with open_evaluation(request) as evaluation:
        tally = Tally(quiet=quiet, errors_shown=False)
        pictures = len(evaluation.collector.samples)
        with progress(lambda: pictures, wanted=not quiet) as advance:
            for record in evaluation.run():
                tally.add(record)
                advance()
        tally.summarise(evaluation.pipeline.times, 0)
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
