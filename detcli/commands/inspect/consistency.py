"""Ranks interpretations of a model by how far its detections confirm themselves.

Each picture runs as it is, mirrored, and moved and shrunk, for it lies at the corner of a larger
one. A network that sees what it was trained on is sure, and finds the same objects in all three.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from detcli.commands.inspect.report import FailedPicture, TrialMethod
from detcli.commands.inspect.trial import Measurement
from detcli.commands.shared.comparison import match
from detcli.detections import Detections
from detcli.detector import Detector
from detcli.errors import InputError, SourceError
from detcli.geometry import Image, Picture
from detcli.settings import Settings
from detcli.source.item import Item
from detcli.source.loading import load_in_time

MOST = 16
"""Pictures that each interpretation runs on."""
SEARCHED = 1000
"""Inputs of a source that these are spread over."""

BORDER = 10
"""A moved picture gets a tenth of its width and height as a border."""
PAD = 114


@dataclass(frozen=True, eq=False, slots=True)
class SelfConsistency:
    """Pictures without labels, as an `Evidence`."""

    pictures: tuple[str, ...]
    failed: tuple[FailedPicture, ...]
    images: tuple[Image, ...]
    method: TrialMethod = "self-consistency"
    settings: Settings = field(default_factory=lambda: Settings(conf=0.1, max_det=100))
    least: float = 0.1

    @classmethod
    def of(cls, items: Iterable[Item]) -> "SelfConsistency":
        """Load pictures that are spread over a source.

        Raises:
            SourceError: No picture can be read.
        """
        sources, failed, images = list[str](), list[FailedPicture](), list[Image]()
        for item in spread(items):
            try:
                picture = load_in_time(item)
            except InputError as error:
                failed.append(FailedPicture(item.origin.source, str(error)))
            else:
                sources.append(item.origin.source)
                images.append(picture.pixels)
        if not images:
            why = f": {failed[0].source}: {failed[0].error}" if failed else ""
            raise SourceError(
                f"--try: no picture could be read{why}", "name pictures, a folder or a video"
            )
        return cls(tuple(sources), tuple(failed), tuple(images))

    def measure(self, detector: Detector, advance: Callable[[], None]) -> Measurement:
        """Rank by scores that all views confirm, less those that they do not.

        A score that the detections of an unrelated picture confirm equally well does not count.
        """
        plain, views = list[Detections](), list[list[Detections]]()
        for image in self.images:
            plain.append(_detect(detector, image))
            views.append(_views(detector, image) if len(plain[-1]) else [])
            advance()
        scores, found, confirmed = list[float](), 0.0, 0.0
        for number, own in enumerate(plain):
            score = own.score.clip(0, 1).astype(np.float64)
            least = np.min([score, *(_confirmed(own, view) for view in views[number])], axis=0)
            evident = least
            if len(plain) > 1:  # the other picture of the first is the last, as -1 says
                other = _stretched(plain[number - 1], self.images[number - 1], self.images[number])
                evident = (least - _confirmed(own, other)).clip(0)
            # Squared, because one sure detection tells more than many that are hardly any. What
            # is not confirmed counts against it: a network that is fed nonsense may be quite
            # sure of a hundred boxes. The logarithm keeps a crowded picture from outweighing all.
            gain = (evident**2).sum() - ((score - least) ** 2).sum()
            scores.append(float(np.log1p(max(gain, 0.0))))
            found += float(score.sum())
            confirmed += float(least.sum())
        return Measurement(
            rank=float(np.mean(scores)),
            scores=np.array(scores),
            found=found / len(scores),
            confirmed=confirmed / found if found else 0.0,
        )


def spread(items: Iterable[Item], count: int = MOST) -> list[Item]:
    """Up to `count` items, evenly spread over the first `SEARCHED` of a source."""
    kept: list[Item] = []
    step = 1
    for number, item in enumerate(islice(items, SEARCHED)):
        if number % step == 0:
            kept.append(item)
        if len(kept) == 2 * count:  # frames of a video hold their pixels: never keep many
            kept, step = kept[::2], 2 * step
    places = np.linspace(0, len(kept) - 1, min(count, len(kept))).round().astype(int)
    return [kept[place] for place in places.tolist()]


def _detect(detector: Detector, image: Image) -> Detections:
    return detector.submit([Picture.whole(image)])()[0]


def _views(detector: Detector, image: Image) -> list[Detections]:
    """Detections in other views of a picture, in its own pixels."""
    height, width = image.shape[:2]
    top, left = -(-height // BORDER), -(-width // BORDER)
    moved = np.full((height + top, width + left, 3), PAD, np.uint8)
    moved[top:, left:] = image
    shifted = _detect(detector, moved)
    mirrored = _detect(detector, np.ascontiguousarray(image[:, ::-1]))
    x1, y1, x2, y2 = mirrored.xyxy.T
    border = np.array([left, top, left, top], np.float32)
    return [
        replace(mirrored, xyxy=np.stack([width - x2, y1, width - x1, y2], axis=1)),
        replace(shifted, xyxy=shifted.xyxy - border),
    ]


def _stretched(detections: Detections, picture: Image, other: Image) -> Detections:
    """Detections in a picture at the same places of another."""
    height, width = np.divide(other.shape[:2], picture.shape[:2])
    sides = np.array([width, height, width, height], np.float32)
    return replace(detections, xyxy=detections.xyxy * sides)


def _confirmed(plain: Detections, other: Detections) -> npt.NDArray[np.float64]:
    """`(n,)` how much of each score the detections of another view or picture confirm."""
    confirmed = np.zeros(len(plain))
    for pair in match(plain, other):
        confirmed[pair.left] = min(plain.score[pair.left], other.score[pair.right], 1.0)
    return confirmed
