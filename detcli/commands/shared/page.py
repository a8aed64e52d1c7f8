"""What a result page says about what made it."""

import contextlib
import platform
from collections.abc import Iterator, Mapping

from detcli.errors import UsageError
from detcli.places import Shape
from detcli.record import SettingsJson
from detcli.sink.page import About

UNSAID: tuple[object, ...] = (None, False, "", [], {})
"""Values of settings that change nothing."""


def about_run(command: str, settings: SettingsJson | None) -> About:
    """What a run's page says of it."""
    if settings is None:
        return About(command, [*versions()])
    facts = [*settings_facts(settings), *versions()]
    return About(command, facts, floor=settings["conf"], places=[*settings_places(settings)])


def settings_facts(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Names and values of the settings that change something."""
    for name, value in settings.items():
        if name == "names":
            continue  # of classes, of which the page has those that were found
        if value not in UNSAID:
            yield name.replace("_", " "), _text(value)


def settings_places(settings: Mapping[str, object]) -> Iterator[Shape]:
    """The zones and lines of settings; whatever else stands in their place is left out."""
    for name, read in (("zones", Shape.zone), ("lines", Shape.line)):
        texts = settings.get(name)
        for text in texts if isinstance(texts, list) else ():
            with contextlib.suppress(UsageError):
                yield read(str(text))


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def versions() -> Iterator[tuple[str, str]]:
    """Versions of what computes detections."""
    import cv2
    import numpy as np
    import onnxruntime

    yield "Python", platform.python_version()
    yield "ONNX Runtime", onnxruntime.__version__
    yield "OpenCV", cv2.__version__
    yield "NumPy", np.__version__
