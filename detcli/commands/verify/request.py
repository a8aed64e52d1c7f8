"""The options of `detcli verify`: what to compare, and what to write."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.commands.shared.saved import GZIP, SUFFIXES
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat
from detcli.settings import Settings
from detcli.sink.page.folder import require_apart

if TYPE_CHECKING:
    from detcli.source.sources import InputGuard


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to compare; each field is named as on the command line, and in certificates.

    Raises:
        UsageError: The options contradict each other.
    """

    model: str
    other: str | None = None
    images: tuple[str, ...] = ()
    random: int | None = None
    recursive: bool = False
    device: str = "cpu"
    against: str | None = None
    half: bool = False
    conf: float | None = None
    nms: float | None = None
    imgsz: int | None = None
    box_format: BoxFormat | None = None
    preprocess: str | None = None
    iou: float = 0.5
    tolerance: dict[str, float] = field(default_factory=dict)
    coco_images: str | None = None
    tensors: bool = False
    bisect: bool = False

    def __post_init__(self) -> None:
        if self.is_saved:
            self._check_saved()
        else:
            self._check_running()
        if not 0 < self.iou <= 1:
            raise UsageError(f"--iou is {self.iou}", "give an IoU above 0, up to 1")

    @property
    def is_saved(self) -> bool:
        """Whether saved runs are compared."""
        return is_saved(self.model) or (self.other is not None and is_saved(self.other))

    @property
    def compares_tensors(self) -> bool:
        """Whether tensors are compared, not only detections."""
        return self.tensors or self.bisect

    @property
    def settings(self) -> Settings:
        """What the detections of both sides depend on.

        Raises:
            UsageError: A value is out of range.
        """
        return Settings(
            conf=self.conf,
            nms=self.nms,
            imgsz=self.imgsz,
            box_format=self.box_format,
            preprocess=self.preprocess,
        )

    def _check_running(self) -> None:
        if self.coco_images is not None:
            raise UsageError("--coco-images needs saved records and COCO results", "leave it out")
        if bool(self.images) == (self.random is not None):
            raise UsageError(
                "--images and --random are mutually exclusive"
                if self.images
                else "no pictures to compare on",
                "name a folder of real pictures with --images",
            )
        if self.random is not None and not self.compares_tensors:
            raise UsageError(
                "random pictures cannot compare detections: two detectors that find nothing agree",
                "name a folder of pictures with --images; or compare --tensors or --bisect",
            )

    def _check_saved(self) -> None:
        names = [self.model, *filter(None, [self.other])]
        if len(names) == 1:
            raise UsageError(
                f"{self.model} holds saved records, which are compared with other saved records, "
                "or with COCO results",
                "name two: detcli verify here.jsonl there.jsonl",
            )
        saved = [name for name in names if is_saved(name)]
        for name in names:
            if name not in saved:
                raise UsageError(
                    f"{saved[0]} holds saved records, and {name} is neither saved records nor COCO "
                    "results",
                    "name two saved runs, or two models",
                )
        running = {
            "--random": self.random,
            "--recursive": self.recursive,
            "--against": self.against,
            "--half": self.half,
            "--nms": self.nms,
            "--imgsz": self.imgsz,
            "--box-format": self.box_format,
            "--preprocess": self.preprocess,
            "--tensors": self.tensors,
            "--bisect": self.bisect,
        }
        for option, value in running.items():
            if value is not None and value is not False:
                raise about_running(option)
        if len(self.images) > 1:
            raise UsageError(
                "saved records have their pictures in one folder", "give --images once"
            )


def about_running(option: str) -> UsageError:
    """The error for an option that saved records leave nothing to do."""
    return UsageError(
        f"{option} applies to running a model; saved records are compared as they are",
        f"leave out {option}",
    )


def is_saved(name: str) -> bool:
    """Whether a name is that of saved records, and not of a model.

    Those are files of JSON, behind gzip or not; folders of runs in shards; and pipes.
    """
    if name.lower().endswith(SUFFIXES):
        return True
    path = Path(name)
    try:
        if path.is_dir():
            return (path / "manifest.jsonl").is_file()
        if path.is_fifo():
            return True
        with path.open("rb") as file:
            begins = file.read(2)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return False
    return begins == GZIP or begins[:1] in {b"{", b"["}  # as no ONNX model does


@dataclass(frozen=True, slots=True)
class Outputs:
    """A folder for a page, and a certificate's file; both optional."""

    report: Path | None = None
    certificate: Path | None = None

    def check(self, guard: "InputGuard") -> None:
        """Refuse to write over an input, or into the folder of the page.

        Raises:
            UsageError: The certificate is one of the inputs, or in the folder of the page.
        """
        require_apart(self.report, [self.certificate])
        guard.refuse([self.certificate])
