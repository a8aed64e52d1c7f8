"""Outputs: what a run writes, and where."""

# Not `from __future__ import annotations`: options read their types.
from pathlib import Path, PurePath
from typing import Any

from detcli.config.option import option
from detcli.config.values import (
    BLUR_MARGIN,
    FORMAT_OF_SUFFIX,
    CropMargin,
    Format,
    Hiding,
    Target,
    is_folder,
    parse_duration,
    parse_labels,
    parse_writable,
    read_target,
)
from detcli.core import frozen


def output_option(
    declaration: str,
    help_text: str,
    **traits: Any,  # noqa: ANN401 - as in `Option`
) -> Path | None:
    """Declare an option of a run that names a file or folder to write to.

    A run in shards cannot have it: it writes records only.
    """
    return option(None, declaration, help_text, sharded=False, parse=parse_writable, **traits)


NAME_A_FOLDER = "name a folder for images, as with --save DIR"  # a hint
NEEDS_BLUR = {"blur": "name what to hide: --blur person,car"}
NEEDS_CROPS = {"save_crops": "name a folder for crops: --save-crops DIR"}
NEEDS_ANNOTATED_IMAGES = {"save show": NAME_A_FOLDER}


def _has_known_suffix(output: str) -> bool:
    """Whether the name of an output chooses a format."""
    return PurePath(output).suffix.lower() in FORMAT_OF_SUFFIX


@frozen
class Outputs:
    """What is written, and where."""

    format: Format | None = option(
        None,
        f"--format {'|'.join(Format)}",
        "Default: by the suffix of --output, else table on a terminal and jsonl in a pipe.",
        common=True,
        other_names="f",
        overridden_by={
            "resume": bool,
            "output": _has_known_suffix,
        },
    )
    output: str | None = option(
        None,
        "-o, --output FILE|FOLDER/",
        "Write records to this file or s3:// object; - is standard output. With a / at the end it "
        "is a folder for a run in shards.",
        common=True,
        overridden_by={"resume": bool},
    )
    base: str | None = option(
        None,
        "--base FOLDER",
        "Name files relative to this folder; for --format megadetector, which Timelapse reads.",
        sharded=False,
        needs={"format": "add --format megadetector"},
        other_names="output-relative-filenames",
    )
    resume: Path | None = output_option(
        "--resume FILE",
        "Append JSON Lines to this file, and skip inputs already in it.",
        common=True,
        excludes={
            "fail_if": (
                "--fail-if with --resume would count this run only",
                "count in the file with jq",
            ),
            "output": ("--resume and --output are mutually exclusive", "leave out --output"),
            "save_coco": (
                "--save-coco with --resume would hold the results of this run only",
                "write COCO results in a separate run",
            ),
            "save_mot": (
                "--save-mot with --resume would hold the tracks of this run only",
                "write them in a separate run",
            ),
        },
    )
    force: bool = option(
        False,
        "--force",
        "Let --resume continue a file made with other settings.",
        sharded=False,
        needs={"resume": "leave it out: -o replaces its file"},
    )
    save: Path | None = output_option(
        "--save DIR",
        "Write annotated images and videos to this folder.",
        common=True,
        other_names="out out-dir draw annotate visualize",
    )
    gif: float | None = option(
        None,
        "--gif TIME",
        "Write the first 6s, or up to 30s, of each annotated video as a GIF below 5 MB, too.",
        range=(0.1, 30),
        parse=parse_duration,
        sharded=False,
        needs={"save": "name a folder for it: --save DIR"},
    )
    line_width: int | None = option(
        None,
        "--line-width N",
        "Width of lines in annotated images, in pixels; default: by the image's size.",
        range=(1, None),
        needs=NEEDS_ANNOTATED_IMAGES,
    )
    labels: str = option(
        "name,score",
        "--labels LIST|none",
        "What labels in annotated images say: name, score.",
        parse=parse_labels,
        separator=",",
        needs=NEEDS_ANNOTATED_IMAGES,
    )
    save_txt: Path | None = output_option("--save-txt DIR", "Write YOLO labels to this folder.")
    save_conf: bool = option(
        False,
        "--save-conf",
        "Add the score to each label as a sixth column.",
        needs={"save_txt": "name a folder for labels"},
    )
    save_coco: Path | None = output_option("--save-coco FILE", "Write COCO results to this file.")
    coco_images: Path | None = option(
        None,
        "--coco-images FILE",
        "COCO instances.json with the ids of images and categories.",
        needs={"save_coco": "name a file for results"},
    )
    save_crops: Path | None = output_option(
        "--save-crops DIR", "Write each detection as an image, in one folder per class."
    )
    crop_margin: CropMargin | None = option(
        None,
        "--crop-margin 10%|16px",
        "Let crops reach beyond each side of the box, by a part of its width and height or by "
        "pixels; they end at the image's edge.",
        needs=NEEDS_CROPS,
        other_names="crop-padding",
    )
    crop_square: bool = option(
        False,
        "--crop-square",
        "Make crops as wide as high: the shorter side grows, and at the image's edge to the other "
        "side.",
        needs=NEEDS_CROPS,
    )
    save_dataset: Path | None = output_option(
        "--save-dataset DIR", "Add images and labels to a dataset that trainers read."
    )
    report: Path | None = output_option(
        "--report DIR|FILE.html",
        "Write an HTML report to this folder: open its index.html. FILE.html is one file to send, "
        "of up to 500 images.",
        common=True,
        other_names="save",
    )
    apply: Path | None = option(
        None,
        "--apply FILE",
        "Leave out what these marks drop, which a page has saved: images and boxes. Boxes of a "
        "group of repeats stay, marked as repeated.",
        sharded=False,
        excludes={
            "resume": (
                "--apply would leave out images that --resume then does again",
                "apply the marks in a separate run",
            ),
        },
    )
    report_link: bool = option(
        False,
        "--report-link",
        "Show image files on the page where they are, in full size, in place of copies.",
        needs={"report": "name a folder for the page"},
        excludes={  # and not the other way round: --blur as a default never gives way
            "blur": (
                "--blur would hide nothing in the files that --report-link shows",
                "leave out --report-link: copies are blurred",
            )
        },
    )
    provenance: bool = option(
        False,
        "--provenance",
        "Say in the records what made them: settings, versions, processor and GPU in the first, "
        "the SHA-256 of its file in each.",
        sharded=False,
    )
    show: bool = option(False, "--show", "Show annotated images in a window.", sharded=False)
    blur: tuple[str, ...] = option(
        (),
        "--blur LIST",
        "Hide these classes, where they are found above --conf, in all images that are written "
        "or shown: person,car. Records keep their boxes.",
        separator=",",
        needs={"save save_crops save_dataset report show read": NAME_A_FOLDER},
        other_names="anonymize hide",
    )
    blur_with: Hiding = option(
        Hiding.BLUR,
        f"--blur-with {'|'.join(Hiding)}",
        "How to hide them; fill leaves nothing at all.",
        needs=NEEDS_BLUR,
    )
    blur_margin: float = option(
        BLUR_MARGIN,
        "--blur-margin FRACTION",
        "Hide this part of a box's width and height beyond each of its sides, too.",
        range=(0, 10),
        needs=NEEDS_BLUR,
    )
    only_detections: bool = option(
        False,
        "--only-detections",
        "Keep no image or frame without detections; records stay.",
        needs={"save save_dataset report": NAME_A_FOLDER},
    )
    burst: float | None = option(
        None,
        "--burst TIME",
        "Number the photographs of a folder that were taken at most this long after one another, "
        "as in 60s, and give each the best score of its burst. Needs -o FILE, or detcli merge.",
        range=(0, None),
        parse=parse_duration,
        sharded=False,
        common=True,
        excludes={
            "resume": (
                "--burst with --resume would not know the photographs of the runs before",
                "resume a run in shards with -o boxes/, then detcli merge boxes/ --burst TIME",
            ),
        },
        other_names="sequence",
    )
    save_mot: Path | None = output_option(
        "--save-mot DIR",
        "Write tracks of each video in MOTChallenge's format.",
        needs={"track": "add --track bytetrack"},
    )
    fail_if: tuple[str, ...] = option(
        (),
        "--fail-if CONDITION",
        "Exit with 6 if this holds at the end: 'person>0', 'any==0', 'ZONE.person>0'.",
        sharded=False,
    )

    @property
    def in_shards(self) -> bool:
        """Whether the output is a folder of parts."""
        return is_folder(self.output)

    @property
    def target(self) -> "Target | None":
        """The file or object that records are written to; None for standard output.

        It is also None for a run in shards, which writes a folder of parts.
        """
        if self.in_shards:
            return None
        return read_target(self.output)

    @property
    def files(self) -> "tuple[Target | None, ...]":
        """Files of results; None for each that is not written."""
        return (self.target, self.resume, self.save_coco)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of files that records name."""
        folders = (self.save, self.save_txt, self.save_crops, self.save_dataset, self.save_mot)
        return tuple(folder for folder in folders if folder)

    @property
    def written(self) -> tuple[Path, ...]:
        """All folders that the run writes to."""
        if self.report is None:
            return self.folders
        return (*self.folders, self.report)

    @property
    def need_pixels(self) -> bool:
        """Whether images are shown or written, and so have to be decoded in full size."""
        folders_of_images = (self.save, self.save_crops, self.save_dataset, self.report)
        return self.show or any(folders_of_images)

    @property
    def need_identity(self) -> bool:
        """Whether an output says what the detections depend on: model, settings and version."""
        return self.provenance or self.resume is not None or self.report is not None
