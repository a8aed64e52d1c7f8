"""What a page says about a run: its settings, its zones and lines, and library versions."""

import contextlib
import platform
from collections.abc import Iterator, Mapping, Sequence

from detcli.config.ignored import IgnoredZone
from detcli.config.shapes import Line, Shape, Zone
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.data.record import SettingsJson
from detcli.page.entries import BoxKind


@frozen
class RunInfo:
    """What the page says about a run: its command, its settings, and how its boxes are shown."""

    command: str  # predict, report, verify or eval
    facts: Sequence[tuple[str, str]] = ()  # name and value of whatever the detections depend on
    kinds: Sequence[BoxKind] = ()  # what a comparison may say about boxes
    sides: Sequence[str] = ()  # names of the two that are compared
    min_score: float = 0.0  # detections score above it
    zones_and_lines: Sequence[Shape] = ()  # zones and lines, which are drawn on each image
    ignored: Sequence[Zone] = ()  # polygons to ignore, of all sources or of some
    records_are_repeats: bool = False  # whether each record is a group of boxes that repeat
    rerun: Sequence[str] = ()  # words of a command that finds the same detections; () for none


VALUES_WITHOUT_EFFECT: tuple[object, ...] = (None, False, "", [], {})  # of settings


def run_info_of(settings: SettingsJson, rerun: Sequence[str] = ()) -> RunInfo:
    """Describe a run of the command predict for its page.

    Args:
        settings: What its detections depend on.
        rerun: The words of a command with the same settings, without inputs, which the page
            shows; empty to show none.
    """
    # The page can show scores above the lowest threshold, of all classes or of a single one.
    thresholds = [settings["conf"], *settings["class_conf"].values()]
    return RunInfo(
        "predict",
        facts=[*settings_facts(settings), *versions()],
        min_score=min(*thresholds, 1),  # a score is at most 1
        zones_and_lines=list(zones_and_lines_of(settings)),
        ignored=list(ignored_of(settings)),
        rerun=rerun,
    )


def settings_facts(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield names and values, as people read them, of the settings that have an effect.

    The names of classes are left out: the page has those of its boxes.
    """
    for name, value in settings.items():
        if name == "names":
            continue
        if value not in VALUES_WITHOUT_EFFECT:
            yield name.replace("_", " "), _text(value)


def ignored_of(settings: Mapping[str, object]) -> Iterator[Zone]:
    """Yield the polygons of the setting `ignore`, as `zones_and_lines_of` does."""
    texts = settings.get("ignore")
    if not isinstance(texts, list):
        return
    for text in texts:
        with contextlib.suppress(UsageError):
            yield IgnoredZone.parse(str(text))


def zones_and_lines_of(settings: Mapping[str, object]) -> Iterator[Shape]:
    """Yield the zones and lines of settings, which may come from a file of any content.

    Values that are not zones or lines are left out.
    """
    for setting, parse_shape in (("zones", Zone.parse), ("lines", Line.parse)):
        texts = settings.get(setting)
        if not isinstance(texts, list):
            continue
        for text in texts:
            with contextlib.suppress(UsageError):
                yield parse_shape(str(text))


def _text(value: object) -> str:
    """Format the value of a setting for people: lists and mappings with commas."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)


def versions() -> Iterator[tuple[str, str]]:
    """Yield the names and versions of the libraries that compute detections."""
    import cv2
    import numpy as np
    import onnxruntime

    yield "Python", platform.python_version()
    yield "ONNX Runtime", onnxruntime.__version__
    yield "OpenCV", cv2.__version__
    yield "NumPy", np.__version__
