"""detcli: object detection with ONNX models, for the shell and for Python.

    from detcli import Detector

Importing the package is cheap: each name is imported on first use.
"""

TYPE_CHECKING = False  # not from `typing`: the command line handles signals only after this import

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from detcli.backend.device import DeviceOptions
    from detcli.detections import Detections
    from detcli.detector import Detector
    from detcli.errors import DetcliError, DetcliWarning
    from detcli.geometry import Letterbox
    from detcli.settings import Settings
    from detcli.tiling import Tiling
    from detcli.topk import top_k

_MODULES = {
    "Detections": "detcli.detections",
    "Detector": "detcli.detector",
    "DeviceOptions": "detcli.backend.device",
    "DetcliError": "detcli.errors",
    "DetcliWarning": "detcli.errors",
    "Letterbox": "detcli.geometry",
    "Settings": "detcli.settings",
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
