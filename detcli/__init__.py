"""detcli: object detection with ONNX models, for the shell and for Python.

    from detcli import Detector, predict

Importing the package is cheap: each name is imported on first use.

commands/   one file or folder each
cli/        options, messages, reports, exit codes
run/        a Config opened: source -> detector -> analytics -> sink; shards of a run
compare/    detections of two sides
page/       the HTML report
source/     names to images; sink/ writes records and images
analytics/  adds tracks, zones, lines and texts to records
backend/    preprocessing, network and postprocessing on a device
model/      ONNX files: what they promise, and where they are kept
config/     all options, and the values that they hold
data/       images, boxes, detections, records, and the algorithms on them
storage/    files, objects in buckets, the cache
core/       errors, interrupts, text, threads: what all of them share
"""

TYPE_CHECKING = False  # not from `typing`: the command line handles signals only after this import

__version__ = "1.0.0rc1"

if TYPE_CHECKING:
    from typing import Any

    from detcli.config.config import Settings
    from detcli.config.device import DeviceOptions
    from detcli.config.inputs import Inputs
    from detcli.config.shapes import Line, Region, Zone
    from detcli.config.values import Tiling, Tracking
    from detcli.config.watched import Watched
    from detcli.core.errors import (
        DecodeError,
        DependencyError,
        DetcliError,
        DetcliWarning,
        DeviceError,
        DeviceMemoryError,
        InferenceError,
        InputError,
        ModelError,
        OutputError,
        SourceError,
        UsageError,
    )
    from detcli.data.detections import Detections
    from detcli.data.record import Record
    from detcli.data.topk import top_k
    from detcli.run.detector import Detector, predict
    from detcli.run.records import Records

_MODULES = {
    "DecodeError": "detcli.core.errors",
    "DependencyError": "detcli.core.errors",
    "DetcliError": "detcli.core.errors",
    "DetcliWarning": "detcli.core.errors",
    "Detections": "detcli.data.detections",
    "Detector": "detcli.run.detector",
    "DeviceError": "detcli.core.errors",
    "DeviceMemoryError": "detcli.core.errors",
    "DeviceOptions": "detcli.config.device",
    "InferenceError": "detcli.core.errors",
    "InputError": "detcli.core.errors",
    "Inputs": "detcli.config.inputs",
    "Line": "detcli.config.shapes",
    "ModelError": "detcli.core.errors",
    "OutputError": "detcli.core.errors",
    "Record": "detcli.data.record",
    "Records": "detcli.run.records",
    "Region": "detcli.config.shapes",
    "Settings": "detcli.config.config",
    "SourceError": "detcli.core.errors",
    "Tiling": "detcli.config.values",
    "Tracking": "detcli.config.values",
    "UsageError": "detcli.core.errors",
    "Watched": "detcli.config.watched",
    "Zone": "detcli.config.shapes",
    "predict": "detcli.run.detector",
    "top_k": "detcli.data.topk",
}

__all__ = [
    "DecodeError",
    "DependencyError",
    "DetcliError",
    "DetcliWarning",
    "Detections",
    "Detector",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceOptions",
    "InferenceError",
    "InputError",
    "Inputs",
    "Line",
    "ModelError",
    "OutputError",
    "Record",
    "Records",
    "Region",
    "Settings",
    "SourceError",
    "Tiling",
    "Tracking",
    "UsageError",
    "Watched",
    "Zone",
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
