"""What is asked in a process of its own, see process.py; the answers are what JSON can hold."""

from dataclasses import asdict, replace
from typing import Any

from detcli.commands.doctor.privacy import scrub

DISPLAY = "cannot show pictures: "


def driver() -> dict[str, Any]:
    """What NVIDIA's driver says of itself: the fields of DriverFacts."""
    from detcli.backend.nvidia import ask_driver

    facts = ask_driver()
    return asdict(replace(facts, load_error=facts.load_error and scrub(facts.load_error)))


def runtime() -> dict[str, Any]:
    """What ONNX Runtime says of itself, and which libraries of its GPU providers do not load."""
    from detcli.backend.runtime import onnxruntime
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, unloadable_libraries

    providers = onnxruntime.get_available_providers()
    return {
        "version": onnxruntime.__version__,
        "cuda": getattr(onnxruntime, "cuda_version", None) or None,
        "providers": providers,
        "failures": {
            provider: [
                asdict(replace(failure, reason=scrub(failure.reason)))
                for failure in unloadable_libraries(provider)
            ]
            for provider in (CUDA, TENSORRT)
            if provider in providers
        },
    }


def display() -> str | None:
    """Why `predict --show` would not open a window; None if one did, for a moment."""
    from detcli.errors import DetcliError
    from detcli.sink.window import check_display

    try:
        check_display()
    except DetcliError as error:
        return scrub(str(error).removeprefix(DISPLAY))
    return None
