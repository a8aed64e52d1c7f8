"""`detcli predict`: boxes from pictures and videos."""

import os
from pathlib import Path
from typing import Annotated

import typer

from detcli.commands.predict.options import check_resume, parse_labels, read_shard_options
from detcli.commands.shared import options
from detcli.commands.shared.formats import Format, choose_format, read_target, require_disk
from detcli.commands.shared.layout import INPUT, OUTPUT, SCENE, SELECTION, SHARDS
from detcli.commands.shared.messages import set_verbosity
from detcli.commands.shared.options import flag, option
from detcli.errors import InputError, UsageError
from detcli.model.zoo import DEFAULT

EXAMPLES = """
detcli predict street.jpg --save out
detcli predict pics -r --classes person,car -o boxes.csv
detcli predict camera:0 --model codes --conf 0.5
"""


def predict(  # noqa: PLR0913 - one parameter per option; they become objects at once
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="Pictures, videos, folders, quoted glob patterns, s3:// gs:// az:// objects, "
            "camera:N, rtsp:// or http:// streams; - reads a picture or JPEGs from stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    context: typer.Context,
    model: options.ModelOption = DEFAULT,
    device: options.DeviceOption = "auto",
    conf: options.ConfidenceOption = None,
    max_det: Annotated[
        int, option("N", "Keep at most N detections per picture, or tile.", panel=SELECTION)
    ] = 300,
    classes: Annotated[
        str | None,
        option(
            "LIST", "Keep only these classes, by name or id: person,car or 0,2.", panel=SELECTION
        ),
    ] = None,
    nms: options.NmsOption = None,
    unique: options.UniqueOption = False,
    imgsz: options.ImageSizeOption = None,
    rect: options.RectOption = False,
    names: options.NamesOption = None,
    box_format: options.BoxesOption = None,
    preprocess: options.PreprocessOption = None,
    boxes_only: options.BoxesOnlyOption = False,
    recursive: options.RecursiveOption = False,
    files_from: Annotated[
        str | None,
        option(
            "FILE|-",
            "Read names of pictures and videos from this file, one per line.",
            panel=INPUT,
        ),
    ] = None,
    null: Annotated[
        bool,
        flag(
            "Names in --files-from end with NUL instead of a newline.",
            *("--null", "-0"),
            panel=INPUT,
        ),
    ] = False,
    vid_stride: Annotated[
        int, option("N", "Process every Nth frame of a video.", min=1, panel=INPUT)
    ] = 1,
    start: Annotated[
        float, option("SECONDS", "Start at this time in a video.", min=0, panel=INPUT)
    ] = 0,
    end: Annotated[
        float | None, option("SECONDS", "Stop at this time in a video.", min=0, panel=INPUT)
    ] = None,
    tile: options.TileOption = None,
    max_pixels: options.MaxPixelsOption = 200_000_000,
    input_timeout: options.InputTimeoutOption = 60,
    strict: Annotated[
        bool,
        flag(
            "Make a damaged picture an error, even if it can be decoded.",
            "--strict",
            panel=INPUT,
        ),
    ] = False,
    fast_decode: Annotated[
        bool,
        flag(
            "Decode large JPEGs at reduced size; boxes may differ slightly.",
            "--fast-decode",
            panel=INPUT,
        ),
    ] = False,
    batch: options.BatchOption = None,
    workers: options.WorkersOption = None,
    cuda_graph: options.CudaGraphOption = None,
    gpu_mem_limit: options.MemoryLimitOption = None,
    half: options.HalfOption = False,
    output_format: Annotated[
        Format | None,
        option(
            "|".join(Format),
            "Default: by the suffix of --output, else table on a terminal and jsonl in a pipe.",
            "--format",
            panel=OUTPUT,
        ),
    ] = None,
    output: Annotated[
        str | None,
        option(
            "FILE|FOLDER/",
            "Write records to this file or s3:// object; - is standard output. With a / at the end "
            "it is a folder for a run in shards.",
            "--output",
            "-o",
            panel=OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        option(
            "FILE", "Append JSON Lines to this file, and skip inputs already in it.", panel=OUTPUT
        ),
    ] = None,
    force: Annotated[
        bool,
        flag("Let --resume continue a file made with other settings.", "--force", panel=OUTPUT),
    ] = False,
    save: Annotated[
        Path | None,
        option("DIR", "Write annotated pictures and videos to this folder.", panel=OUTPUT),
    ] = None,
    line_width: Annotated[
        int | None,
        option(
            "N",
            "Width of lines in annotated pictures, in pixels; default: by the picture's size.",
            min=1,
            panel=OUTPUT,
        ),
    ] = None,
    labels: Annotated[
        str,
        option("LIST|none", "What labels in annotated pictures say: name, score.", panel=OUTPUT),
    ] = "name,score",
    save_txt: Annotated[
        Path | None, option("DIR", "Write YOLO labels to this folder.", panel=OUTPUT)
    ] = None,
    save_conf: Annotated[
        bool, flag("Add the score to each label as a sixth column.", "--save-conf", panel=OUTPUT)
    ] = False,
    save_coco: options.SaveCocoOption = None,
    coco_images: Annotated[
        Path | None,
        option(
            "FILE", "COCO instances.json with the ids of pictures and categories.", panel=OUTPUT
        ),
    ] = None,
    save_crops: Annotated[
        Path | None,
        option("DIR", "Write each detection as a picture, in one folder per class.", panel=OUTPUT),
    ] = None,
    save_dataset: Annotated[
        Path | None,
        option("DIR", "Add pictures and labels to a dataset that trainers read.", panel=OUTPUT),
    ] = None,
    report: Annotated[
        Path | None,
        option("DIR", "Write a page to look at to this folder: open its index.html.", panel=OUTPUT),
    ] = None,
    provenance: Annotated[
        bool,
        flag(
            "Say in the records what made them: settings, versions, processor and GPU in the "
            "first, the SHA-256 of its file in each.",
            "--provenance",
            panel=OUTPUT,
        ),
    ] = False,
    show: Annotated[
        bool, flag("Show annotated pictures in a window.", "--show", panel=OUTPUT)
    ] = False,
    blur: Annotated[
        str | None,
        option(
            "LIST",
            "Hide these classes in all pictures that are written or shown: person,car. Records "
            "keep their boxes.",
            panel=OUTPUT,
        ),
    ] = None,
    blur_with: options.BlurWithOption = options.Hiding.BLUR,
    only_detections: Annotated[
        bool,
        flag(
            "Keep no picture or frame without detections; records stay.",
            "--only-detections",
            panel=OUTPUT,
        ),
    ] = False,
    read: Annotated[
        bool,
        flag(
            "Read the text of QR Codes, bar codes and other symbols; best with --model codes.",
            "--read",
            panel=SCENE,
        ),
    ] = False,
    zone: Annotated[
        list[str] | None,
        option(
            "NAME=X,Y,...|@FILE",
            "Report which detections lie in a polygon: door=0.1,0.4,0.5,0.4,0.5,1 in fractions of "
            "the picture, or in pixels; @FILE has one a line.",
            panel=SCENE,
        ),
    ] = None,
    track: Annotated[
        str | None,
        option(
            "TRACKER",
            "Follow objects through videos and streams, with bytetrack, botsort or ocsort; "
            "bytetrack,conf=0.5 begins tracks from this score on; default: that of --conf.",
            panel=SCENE,
        ),
    ] = None,
    line: Annotated[
        list[str] | None,
        option(
            "NAME=X1,Y1,X2,Y2|@FILE",
            "Report which tracks cross a line, and towards which side.",
            panel=SCENE,
        ),
    ] = None,
    save_mot: Annotated[
        Path | None,
        option("DIR", "Write tracks of each video in MOTChallenge's format.", panel=OUTPUT),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        option(
            "CONDITION",
            "Exit with 6 if this holds at the end: 'person>0', 'any==0', 'ZONE.person>0'.",
            panel=OUTPUT,
        ),
    ] = None,
    on: Annotated[
        str | None,
        option(
            "ENGINE",
            "What runs the shards: local:N, for N processes here; ray, for actors of a Ray cluster "
            "started here or named by RAY_ADDRESS; ray://HOST:PORT; default: local:1.",
            panel=SHARDS,
        ),
    ] = None,
    actors: Annotated[
        str | None,
        option(
            "N..M",
            "Start with N Ray actors and grow to M; default: as many as there is room for.",
            panel=SHARDS,
        ),
    ] = None,
    shards: Annotated[
        str | None,
        option("K/N", "Work every Nth shard, from the Kth on: 3/8 of eight tasks.", panel=SHARDS),
    ] = None,
    shard_size: Annotated[
        int | None,
        option(
            "N",
            "Inputs per shard; default: 1000, fewer for short lists.",
            min=1,
            max=10**9,
            panel=SHARDS,
        ),
    ] = None,
    extend: Annotated[
        bool,
        flag(
            "Add inputs that are new since the run began as further shards.",
            "--extend",
            panel=SHARDS,
        ),
    ] = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Detect objects in pictures and videos.

    Records go to stdout, everything else to stderr. An input that fails becomes a record with an
    error; the others are completed, and the exit code is 3. --no-FLAG turns off a flag that
    detcli.toml turns on.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    # A default in detcli.toml is for other runs.
    if blur is None and options.is_typed(context, "blur_with"):
        raise UsageError("--blur-with needs --blur", "name what to hide: --blur person,car")
    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.backend.device import available_cores
    from detcli.commands.predict.run import predict_here
    from detcli.commands.predict.sinks import SinkOptions
    from detcli.commands.shared.setup import run_options, set_up_process
    from detcli.source.address import is_live
    from detcli.source.decode import DecodeOptions
    from detcli.source.item import SourceOptions
    from detcli.watch.options import read_watch_options

    shard_options = read_shard_options(
        output,
        output_format,
        on=on,
        actors=actors,
        shards=shards,
        size=shard_size,
        extend=extend,
        others={
            "--resume": resume,
            "--force": force,
            "--fail-if": fail_if,
            "--save": save,
            "--save-txt": save_txt,
            "--save-coco": save_coco,
            "--save-mot": save_mot,
            "--save-crops": save_crops,
            "--save-dataset": save_dataset,
            "--report": report,
            "--provenance": provenance,
            "--show": show,
        },
    )
    if resume is not None:
        typed = output_format if options.is_typed(context, "output_format") else None
        check_resume(output, typed, fail_if or [])
    require_disk(
        {
            "--resume": resume,
            "--save": save,
            "--save-txt": save_txt,
            "--save-coco": save_coco,
            "--save-mot": save_mot,
            "--save-crops": save_crops,
            "--save-dataset": save_dataset,
            "--report": report,
        }
    )
    watch = read_watch_options(zone or [], line or [], track, read=read)
    if not source and files_from is None and shard_options is None:
        raise UsageError("no inputs given", "name pictures or videos, or use --files-from")
        cuda_graph = False
    set_up_process()
    if watch.track is not None:
        import detcli.watch.tracks
    if watch.read:
        import detcli.watch.codes  # noqa: F401
    one_picture = _is_one_picture(source, files_from)
    # One picture is fastest with a detector on all cores, but many tiles are not.
    many = 1 if one_picture and tile is None else available_cores()
    run = run_options(
        model,
        device,
        batch=batch,
        workers=workers or many,
        cuda_graph=cuda_graph,
        gpu_mem_limit=gpu_mem_limit,
        half=half,
        conf=conf,
        max_det=max_det,
        classes=classes,
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
    source_options = SourceOptions(
        recursive=recursive,
        files_from=files_from,
        null_separated=null,
        stride=vid_stride,
        start_s=start,
        end_s=end,
        decode=DecodeOptions(max_pixels=max_pixels, strict=strict, timeout_s=input_timeout),
    )
    if shard_options is not None:
        from detcli.commands.predict.shards import predict_shards

        tally = predict_shards(
            shard_options,
            run,
            source or [],
            source_options,
            watch,
            fast_decode=fast_decode,
            workers=workers,
            quiet=quiet,
            verbose=verbose,
        )
    else:
        target = read_target(output)
        sink_options = SinkOptions(
            format=choose_format(output_format, target),
            watch=watch,
            output=target,
            append=any(map(is_live, source or [])),
            journal=resume,
            force=force,
            pictures=save,
            line_width=line_width,
            label_parts=parse_labels(labels),
            labels=save_txt,
            label_scores=save_conf,
            crops=save_crops,
            dataset=save_dataset,
            mot=save_mot,
            coco=save_coco,
            coco_images=coco_images,
            report=report,
            provenance=provenance,
            show=show,
            only_detections=only_detections,
            blur=() if blur is None else options.parse_list(blur),
            blur_with=blur_with,
        )
        tally = predict_here(
            run,
            source or [],
            source_options,
            sink_options,
            conditions=fail_if or [],
            fast_decode=fast_decode,
            quiet=quiet,
            one_picture=one_picture,
        )
    if tally.failed:
        raise typer.Exit(InputError.exit_code)


def _is_one_picture(source: list[str] | None, files_from: str | None) -> bool:
    """Whether the only input is one picture; stdin counts as one, as its content is unknown."""
    if files_from is not None or not source or len(source) > 1:
        return False
    from detcli.source.folders import is_video

    is_file = os.path.isfile(source[0])  # noqa: PTH113 - raises nothing
    return source[0] == "-" or (is_file and not is_video(source[0]))
