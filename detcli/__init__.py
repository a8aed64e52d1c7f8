"""detcli: object detection with ONNX models, for the shell and for Python.

    from detcli import Detector

Importing the package is cheap: each name is imported on first use.

core/, cli/                              the options of a run, as one Config; the command line
run/, source/, pipeline.py, watch/, sink/ a Config opened; the flow of the command line; record.py
detector.py, settings.py                 pictures to detections, also for Python; detections.py
backend/, topk.py, tiling.py             the stages on a device; ties; tiles
geometry.py, places.py                   letterboxes; zones, lines, and the point of a box in them
model/, cache.py                         ONNX files, where they are kept, and who may write there
app.py, commands/, errors.py             the command line, and its exit codes; interrupts.py: 130
shards/, object_store.py                 runs in parts, buckets
files.py, text.py, timing.py, opencv.py  whole files, safe text, time limits, OpenCV
"""

TYPE_CHECKING = False  # not from `typing`: the command line handles signals only after this import

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from detcli.core.config import Settings
    from detcli.core.device import DeviceOptions
    from detcli.detections import Detections
    from detcli.detector import Detector
    from detcli.errors import DetcliError, DetcliWarning
    from detcli.geometry import Letterbox
    from detcli.tiling import Tiling
    from detcli.topk import top_k

_MODULES = {
    "Detections": "detcli.detections",
    "Detector": "detcli.detector",
    "DeviceOptions": "detcli.core.device",
    "DetcliError": "detcli.errors",
    "DetcliWarning": "detcli.errors",
    "Letterbox": "detcli.geometry",
    "Settings": "detcli.core.config",
    "Tiling": "detcli.tiling",
    "top_k": "detcli.topk",
}

__all__ = [
    "DetcliError",
    "DetcliWarning",
    "Detections",
    "Detector",
    "DeviceOptions",
    "Letterbox",
    "Settings",
    "Tiling",
    "__version__",
    "top_k",
]


def __getattr__(name: str) -> "Any":  # noqa: ANN401 - any of the names above
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
