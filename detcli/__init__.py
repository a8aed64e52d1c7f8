"""detcli: object detection with ONNX models, for the shell and for Python.

    from detcli import Detector, predict

Importing the package is cheap: each name is imported on first use.

commands/   one file or folder each
cli/        options, messages, reports, exit codes
run/        a Config opened: source -> detector -> watch -> sink; shards of a run
source/     names to pictures; watch/ adds to detections; sink/ writes records and pictures
backend/    preprocessing, network and postprocessing on a device
model/      ONNX files: what they promise, and where they are kept
core/       what all of them share: the Config, records, geometry, files, errors
"""

TYPE_CHECKING = False  # not from `typing`: the command line handles signals only after this import

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from detcli.core.config import Inputs, Settings, Watched
    from detcli.core.detections import Detections
    from detcli.core.device import DeviceOptions
    from detcli.core.errors import DetcliError, DetcliWarning
    from detcli.core.record import Record
    from detcli.core.topk import top_k
    from detcli.core.values import Tiling
    from detcli.run.detector import Detector, predict

_MODULES = {
    "Detections": "detcli.core.detections",
    "Detector": "detcli.run.detector",
    "DeviceOptions": "detcli.core.device",
    "DetcliError": "detcli.core.errors",
    "DetcliWarning": "detcli.core.errors",
    "Inputs": "detcli.core.config",
    "Record": "detcli.core.record",
    "Settings": "detcli.core.config",
    "Tiling": "detcli.core.values",
    "Watched": "detcli.core.config",
    "predict": "detcli.run.detector",
    "top_k": "detcli.core.topk",
}

__all__ = [
    "DetcliError",
    "DetcliWarning",
    "Detections",
    "Detector",
    "DeviceOptions",
    "Inputs",
    "Record",
    "Settings",
    "Tiling",
    "Watched",
    "__version__",
    "predict",
    "top_k",
]


def __getattr__(name: str) -> "Any":  # noqa: ANN401 - any of the names above
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
