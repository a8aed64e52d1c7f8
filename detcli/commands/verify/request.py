"""What verify is asked for, on the command line or by a certificate."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from detcli.cli.command import OptionOverride, override_option, selected_options
from detcli.cli.completion import complete_device, complete_files
from detcli.cli.report import REPORT_FORMAT, ReportFormat
from detcli.config.config import DEVICES, INPUT, OUTPUT, Config
from detcli.config.device import Device
from detcli.config.option import Option, bind, config_from, option, options_of, values_of
from detcli.config.values import parse_tolerance, parse_writable
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.lines import mark_of
from detcli.core.text import public_name
from detcli.run.saved import RECORD_SUFFIXES
from detcli.storage.files import GZIP, read_json

ABOUT_RUNNING = (
    *("random", "recursive", "against", "half", "nms", "imgsz", "box_format", "preprocess"),
    *("tensors", "bisect"),
)
"""Options that saved records leave nothing to do, in the order in which they are refused."""

ABOUT_DETECTIONS = (
    "--certificate is about detections",
    "leave out --tensors, --bisect and --random, or leave out --certificate",
)

NAMES_CERTIFICATE = "it names a certificate"
SHOWS_RESULT = "it says how the result is shown, not what is compared"
"""Reasons for certificates not to hold an option, see `Option.uncertified`."""

NOT_A_CERTIFICATE = "it is not a certificate of detcli verify"
BEGINNING_BYTES = 64
"""How much of a file is read to tell JSON from a model: enough for a byte order mark and spaces."""


def complete_side(incomplete: str) -> list[str]:
    """What a side of a comparison may be: a model, or saved records."""
    from detcli.model.zoo import MODELS

    return [*MODELS, *complete_files(incomplete, (".onnx", *RECORD_SUFFIXES))]


CONFIG_OPTIONS: tuple[str | OptionOverride, ...] = (
    override_option(
        "model",
        declaration="MODEL",
        help="ONNX file, or a name from `detcli models list`; or records that predict saved.",
        default=None,
        complete=complete_side,
    ),
    override_option("recursive", needs={"images": "name a folder of images"}),
    override_option(
        "device",
        help="Where MODEL runs: auto, cpu, cuda, cuda:N, tensorrt, tensorrt:N, openvino, "
        "openvino:GPU or openvino:NPU.",
        default=(Device.parse("cpu"),),
    ),
    "half",
    override_option(
        "conf",
        help="Compare detections with scores above this; default: as in predict, or that of saved "
        "records.",
        parse_fields=None,
        separator="",  # one number, not a list
    ),
    "nms",
    "imgsz",
    "box_format",
    "preprocess",
    override_option(
        "report",
        uncertified=SHOWS_RESULT,
        help="Write a page of what is missing, extra or moved to this folder: open its index.html.",
    ),
    override_option("report_link", uncertified=SHOWS_RESULT),
    override_option("quiet", uncertified=SHOWS_RESULT),
    override_option("verbose", uncertified=SHOWS_RESULT),
)
"""The options of Config that verify takes."""


@frozen
class VerifyRequest:
    """What to compare: the Config of both sides, and the other options of verify.

    Raises:
        UsageError: The options contradict each other.
    """

    config: Config
    other: str | None = option(
        None,
        "OTHER",
        "ONNX file, records or COCO results to compare with; default: MODEL.",
        complete=complete_side,
    )
    images: tuple[str, ...] = option(
        (),
        "--images FOLDER",
        "Images to compare on: a folder, a file or a quoted glob pattern; repeatable. Of saved "
        "records the folder where the images are now.",
        panel=INPUT,
    )
    random: int | None = option(
        None,
        "--random SEED",
        "Use a random image instead; only for --tensors and --bisect.",
        panel=INPUT,
        range=(0, None),
        excludes={
            "images": (
                "--images and --random are mutually exclusive",
                "name a folder of real images with --images",
            ),
            "report": (
                "--report shows detections, and random images have none",
                "name a folder with --images",
            ),
            "certificate": ABOUT_DETECTIONS,
            **{
                name: (f"--{name} is about detections, and random images have none", "omit it")
                for name in ("conf", "iou")
            },
        },
    )
    against: str | None = option(
        None,
        "--against DEVICE|graph",
        "Where the other side runs; graph for the graph's own selection, on the CPU. "
        "Default: graph for an end-to-end MODEL without OTHER, else the same as --device.",
        panel=DEVICES,
        complete=complete_device,
    )
    iou: float = option(0.5, "--iou IOU", "Boxes that overlap less do not match.")
    tolerance: dict[str, float] | None = option(
        None,
        "--tolerance LIST",
        "Allowed differences, as in score=0.02,corner=2,boxes=1%,tensor=0.05; corner is in "
        "pixels, boxes a share of all. Default: depends on the precision.",
        parse=parse_tolerance,
        separator=",",
    )
    tensors: bool = option(
        False,
        "--tensors",
        "Also compare the raw outputs of the networks.",
        excludes={"certificate": ABOUT_DETECTIONS},
    )
    bisect: bool = option(
        False,
        "--bisect",
        "Find the first node whose output differs.",
        excludes={"certificate": ABOUT_DETECTIONS},
    )
    coco_images: str | None = option(
        None,
        "--coco-images FILE",
        "COCO instances.json with the ids of images and categories in COCO results.",
        panel=INPUT,
    )
    certificate: Path | None = option(
        None,
        "--certificate FILE.json",
        "Write what was compared, with what, and the verdict to this file.",
        panel=OUTPUT,
        parse=parse_writable,
        uncertified=NAMES_CERTIFICATE,
    )
    check: Path | None = option(
        None,
        "--check FILE.json",
        "Compare what this certificate names again, and say what changed.",
        panel=INPUT,
        uncertified=NAMES_CERTIFICATE,
    )
    format: ReportFormat | None = REPORT_FORMAT

    @classmethod
    def own_options(cls) -> dict[str, Option]:
        """The options of verify that are not of Config, by name."""
        options = {}
        for field in fields(cls):
            if "option" in field.metadata:
                options[field.name] = bind(field, field.name, field.type)
        return options

    @classmethod
    def certified_names(cls) -> list[str]:
        """The options that certificates hold: all but those with a reason not to."""
        options = selected_options(CONFIG_OPTIONS) | cls.own_options()
        return [name for name, option in options.items() if not option.uncertified]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Make a request from the values of options by name, as in a certificate.

        Args:
            values: The values as in JSON, such as `{"model": "a.onnx", "iou": 0.5}`; those that are
                missing or null are the defaults.
        """
        own_options = cls.own_options()  # those of verify alone, which no Config has
        all_options = {**options_of(Config), **own_options}
        parsed_values = {}
        for name, raw_value in _raw_values(values).items():
            parsed_values[name] = all_options[name].parse_value(raw_value)
        own_values = {name: parsed_values[name] for name in own_options if name in parsed_values}
        return cls(config_from(Config, parsed_values), **own_values)

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        if self.check is not None:
            return  # the certificate that is checked says what to compare
        if self.config.runtime.model is None:
            raise UsageError(
                "missing argument 'MODEL'",
                "name an ONNX file, a model, or records that predict saved",
            )
        if self.certificate is not None:
            self._check_certificate(self.certificate)
        if len(self.config.runtime.device) > 1:
            raise UsageError("--device names several devices", "name one, and another in --against")
        if self.compares_saved_runs:
            self._check_saved()
        else:
            self._check_running()
        if not 0 < self.iou <= 1:
            raise UsageError(f"--iou is {self.iou}", "give an IoU above 0, up to 1")

    @property
    def model(self) -> str:
        return self.config.runtime.model

    @property
    def compares_saved_runs(self) -> bool:
        """Whether a side is a file or folder with saved records, and not a model."""
        if holds_saved_records(self.model):
            return True
        return self.other is not None and holds_saved_records(self.other)

    @property
    def certifies(self) -> bool:
        return self.certificate is not None or self.check is not None

    @property
    def compares_tensors(self) -> bool:
        return self.tensors or self.bisect

    def to_json(self) -> dict[str, Any]:
        """The request as in a certificate: the value of each option that it holds, by name."""
        config_options = options_of(Config)
        config_values = values_of(self.config)
        request = {}
        for name in self.certified_names():
            if name in config_options:
                request[name] = config_options[name].to_json(config_values[name])
            else:
                request[name] = getattr(self, name)
        request["device"] = str(self.config.runtime.device[0])
        request["tolerance"] = self.tolerance or {}
        return request

    def _check_certificate(self, certificate: Path) -> None:
        """Refuse a certificate that is not JSON, or that would hold URLs with secrets."""
        if certificate.suffix.lower() != ".json":
            raise UsageError(
                f"--certificate {certificate} does not end with .json",
                "name the JSON, as in gpu.json",
            )
        for name in (*self.images, self.model, self.other or "", self.coco_images or ""):
            if public_name(name) != name:
                raise UsageError(
                    f"{name}: a certificate would show the password or token of its address",
                    "name addresses without any, or files",
                )

    def _check_running(self) -> None:
        """Refuse options with which two models cannot be run and compared.

        Raises:
            UsageError: There are no images, or only random ones though detections are compared. Or
                there is --coco-images, which is for saved results.
        """
        if self.coco_images is not None:
            raise UsageError("--coco-images needs saved records and COCO results", "leave it out")
        if not self.images and self.random is None:
            raise UsageError(
                "no images to compare on", "name a folder of real images with --images"
            )
        if self.random is not None and not self.compares_tensors:
            raise UsageError(
                "random images cannot compare detections: two detectors that find nothing agree",
                "name a folder of images with --images; or compare --tensors or --bisect",
            )

    def _check_saved(self) -> None:
        """Check that a request with saved records is about two of them, and not about running."""
        self._require_two_saved()
        values = self.to_json()
        for name in ABOUT_RUNNING:
            if values[name] is not None and values[name] is not False:
                raise about_running(f"--{name.replace('_', '-')}")
        if len(self.images) > 1:
            raise UsageError("saved records have their images in one folder", "give --images once")

    def _require_two_saved(self) -> None:
        """Refuse saved records that are compared with nothing, or with a model."""
        if self.other is None:
            raise UsageError(
                f"{self.model} holds saved records, which are compared with other saved records, "
                "or with COCO results",
                "name two: detcli verify here.jsonl there.jsonl",
            )
        if not holds_saved_records(self.other):
            saved_name = self.model
            model_name = self.other
        elif not holds_saved_records(self.model):
            saved_name = self.other
            model_name = self.model
        else:
            return
        raise UsageError(
            f"{saved_name} holds saved records, and {model_name} is neither saved records nor "
            "COCO results",
            "name two saved runs, or two models",
        )


def uncertified_names() -> set[str]:
    """Return the names of the options of verify that certificates do not hold."""
    options = selected_options(CONFIG_OPTIONS) | VerifyRequest.own_options()
    return options.keys() - set(VerifyRequest.certified_names())


def about_running(option: str) -> UsageError:
    """Make the error for an option that has no effect on saved records."""
    return UsageError(
        f"{option} applies to running a model; saved records are compared as they are",
        f"leave out {option}",
    )


def holds_saved_records(name: str) -> bool:
    """Return whether a file or folder has saved records or COCO results, and is not a model.

    Records are files of JSON or CSV, which may be gzipped, and of Parquet; and folders of runs in
    shards. A pipe counts as records, as a model cannot be read from one.

    Args:
        name: The name of the file or folder. If it cannot be read, it counts as a model.
    """
    if name.lower().endswith(RECORD_SUFFIXES):
        return True
    path = Path(name)
    try:
        is_folder_of_shards = any(path.glob("*manifest.jsonl"))  # nothing for a file
        if path.is_fifo() or is_folder_of_shards:
            return True
        with path.open("rb") as file:
            beginning = file.read(BEGINNING_BYTES)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return False
    return beginning.startswith(GZIP) or _begins_as_json(beginning)


def _begins_as_json(beginning: bytes) -> bool:
    """Return whether a file begins with a brace or a bracket, as JSON does, unlike ONNX models."""
    mark = mark_of(beginning)  # the byte order mark with which some editors begin a file
    if mark:
        # In UTF-16 every second byte of a brace or bracket and its neighbours is 0.
        beginning = beginning[len(mark) :].replace(b"\0", b"").lstrip()
    return beginning.startswith((b"{", b"["))


def _raw_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options that a certificate lists to text, as they would be typed.

    A certificate is the JSON file of an earlier comparison, which is repeated with its options.
    Null and an empty object set nothing. A tolerance is an object in JSON, and becomes text such as
    "score=0.02,corner=2". Without a device, the comparison is made on the CPU.

    Args:
        values: The values of options as JSON, by name.
    """
    raw_values = {name: value for name, value in values.items() if value not in (None, {})}
    tolerance = raw_values.get("tolerance")
    if isinstance(tolerance, dict):
        entries = [f"{name}={value}" for name, value in tolerance.items()]
        raw_values["tolerance"] = ",".join(entries)
    raw_values.setdefault("device", "cpu")
    return raw_values


class EarlierComparison(NamedTuple):
    """A comparison that a certificate is about."""

    request: VerifyRequest  # to do it again
    certificate: dict[str, Any]  # all that the file has


def read_certificate(path: Path, check_request: VerifyRequest) -> EarlierComparison:
    """Read a certificate, which may come from a stranger and so may hold anything.

    Args:
        path: The file.
        check_request: What the user asked for beside --check, such as where to write a page.

    Returns:
        The request that the certificate was issued for, with the outputs of the new one; and all
        that is in the certificate.

    Raises:
        UsageError: It is something else, or cannot be read.
    """
    content = read_json(path, _unusable)
    if not isinstance(content, dict):
        raise _unusable(path, NOT_A_CERTIFICATE)
    values = content.get("request")
    if not isinstance(values, dict) or not isinstance(content.get("report"), dict):
        raise _unusable(path, NOT_A_CERTIFICATE)
    _require_version(path, content)
    _require_complete(path, values)

    certified_values = {name: values.get(name) for name in VerifyRequest.certified_names()}
    request = VerifyRequest.from_json(certified_values)
    config = replace(
        request.config,
        outputs=check_request.config.outputs,
        verbosity=check_request.config.verbosity,
    )
    request = replace(request, config=config, check=path)
    return EarlierComparison(request, content)


def _require_complete(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse the request of a certificate that does not say all that a comparison needs.

    Args:
        path: The file, for the error.
        values: The values of the options by name, which may be anything that JSON can hold.

    Raises:
        UsageError: A value is missing or has the wrong type, or the request is about decoders.
    """
    if values.get("gpu_decode"):  # of earlier certificates
        raise _unusable(path, "it compares decoders, which verify no longer does")
    images = values.get("images")
    has_image_list = isinstance(images, list) and all(isinstance(name, str) for name in images)
    if not has_image_list or not isinstance(values.get("model"), str):
        raise _unusable(path, "its request has no usable model or images")
    if values.get("iou") is None or not isinstance(values.get("tolerance"), dict):
        raise _unusable(path, "its request has no usable iou or tolerance")


def _require_version(path: Path, certificate: dict[str, Any]) -> None:
    """Refuse a certificate of a different schema version, whose fields may mean something else.

    Args:
        path: The file, for the error.
        certificate: What is in it.

    Raises:
        UsageError: It has a different version, or none.
    """
    from detcli.commands.verify.report import Certificate, shortened  # these load NumPy

    current_version = Certificate.schema_version
    version = certificate.get("schema_version")
    if type(version) is int and version == current_version:
        return

    if version is None:
        problem = "does not say its schema version"
    else:
        problem = f"has schema version {shortened(json.dumps(version))}"
    hint = "issue it anew with --certificate"
    if type(version) is int and version > current_version:
        hint = f"check it with the version of detcli that wrote it or a later one, or {hint}"
    raise UsageError(
        f"cannot check {path}: the certificate {problem}, and this detcli reads version "
        f"{current_version}",
        hint,
    )


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(f"cannot check {path}: {reason}", "name the JSON that --certificate wrote")
