"""What a verification is asked for, and what a certificate says that it was."""

from dataclasses import dataclass, field

from detcli.commands.verify.saved import is_saved
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat


@dataclass(frozen=True, slots=True)
class VerifyCall:
    """What to compare, as it was asked for; each field is named as on the command line.

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
    gpu_decode: bool = False

    def __post_init__(self) -> None:
        if self.is_saved:
            self._check_saved()
        elif self.coco_images is not None:
            raise UsageError("--coco-images needs saved records and COCO results", "leave it out")
        elif bool(self.images) == (self.random is not None):
            raise UsageError(
                "--images and --random are mutually exclusive"
                if self.images
                else "no pictures to compare on",
                "name a folder of real pictures with --images",
            )

    @property
    def is_saved(self) -> bool:
        """Whether saved runs are compared."""
        return is_saved(self.model) or (self.other is not None and is_saved(self.other))

    def _check_saved(self) -> None:
        names = [self.model, *filter(None, [self.other])]
        if len(names) == 1 or not all(map(is_saved, names)):
            raise UsageError(
                f"{next(filter(is_saved, names))} holds saved records, which are compared with "
                "other saved records, or with COCO results",
                "name two: detcli verify here.jsonl there.jsonl",
            )
        running = {
            "--random": self.random,
            "--recursive": self.recursive,
            "--against": self.against,
            "--half": self.half,
            "--nms": self.nms,
            "--imgsz": self.imgsz,
            "--boxes": self.box_format,
            "--preprocess": self.preprocess,
            "--tensors": self.tensors,
            "--bisect": self.bisect,
            "--gpu-decode": self.gpu_decode,
        }
        for option, value in running.items():
            if value is not None and value is not False:
                raise UsageError(
                    f"{option} is about running a model, and saved records are compared as they "
                    "are",
                    f"leave out {option}",
                )
        if len(self.images) > 1:
            raise UsageError(
                "saved records have their pictures in one folder", "give --images once"
            )
