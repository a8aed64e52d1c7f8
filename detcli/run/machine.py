"""What a run is made with: versions, processor, GPU and driver, and the hashes of its inputs."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from detcli import __version__
from detcli.backend.nvidia import ask_driver, driver_version
from detcli.config.device import Device, available_cores
from detcli.core.text import pluralize
from detcli.data.geometry import Picture
from detcli.data.record import AddedJson, Origin, ProvenanceJson, Record, iso_time
from detcli.source.loading import STDIN
from detcli.storage.files import sha256


def describe_run(devices: Iterable[Device], precision: str | None) -> ProvenanceJson:
    """Describe the software and hardware of a run, on devices none of which is `auto`.

    It names neither the machine nor its user. `precision` is the lowest that the network uses.
    """
    from detcli.backend.libraries import runtime_cuda
    from detcli.backend.session import onnxruntime

    gpu_ordinals = []  # in the order of the devices
    has_openvino = False
    for device in devices:
        if device.is_gpu:
            gpu_ordinals.append(device.ordinal or 0)
        if device.unit is not None:  # a device of OpenVINO
            has_openvino = True
    openvino = None
    if has_openvino:
        openvino = package_version("openvino")

    gpu_names = []
    driver = None
    driver_cuda = None
    if gpu_ordinals:
        facts = ask_driver()
        driver = driver_version()
        driver_cuda = facts.cuda
        for ordinal in dict.fromkeys(gpu_ordinals):
            is_known = ordinal < len(facts.gpus)
            gpu_names.append(facts.gpus[ordinal].name if is_known else "unknown")
    return {
        "begun": iso_time(datetime.now(UTC)),
        "detcli": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "onnxruntime": onnxruntime.__version__,
        "runtime_cuda": runtime_cuda(),
        "openvino": openvino,
        "opencv": package_version("opencv-python", "opencv-python-headless"),
        "numpy": package_version("numpy"),
        "gpu": ", ".join(gpu_names) or None,
        "driver": driver,
        "driver_cuda": driver_cuda,
        "precision": precision,
    }


def processor_name(root: Path = Path("/")) -> str | None:
    """The name of the CPU, such as "AMD EPYC"; None if it is unknown."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if match is not None:
        return match[1].strip()
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        process = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - a constant
        return process.stdout.strip() or None
    return platform.processor() or None


def machine_name() -> str:
    """Name what decides a model's speed: the processor, its cores for this process, and GPUs."""
    parts = [processor_name() or platform.machine(), pluralize(available_cores(), "core")]
    for gpu in ask_driver().gpus:
        parts.append(gpu.name)
    return ", ".join(parts)


def package_version(*packages: str) -> str | None:
    """Version of the first of these packages that is installed; None if none is."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


class FileHashes:
    """Computes the SHA-256 of files, and remembers the last, as a video has many frames."""

    def __init__(self) -> None:
        self._last: tuple[Path, str] | None = None  # a file and its hash

    def of(self, origin: Origin, picture: Picture | None = None) -> str | None:
        """The hash of the file of a picture or video; None where there is none any more.

        A picture that kept what its file held is that, whatever the file is now.
        """
        if picture is not None and picture.file is not None:
            return hashlib.sha256(picture.file).hexdigest()
        path = origin.path
        if path is None and origin.frame is not None and origin.source != STDIN:
            path = Path(origin.source)  # a video file; an address does not exist as a path
        # Reading a pipe again would wait forever; an address may be too long for a file's name.
        if path is None or not os.path.isfile(path):  # noqa: PTH113 - raises nothing
            return None
        if self._last is None or self._last[0] != path:
            self._last = None
            with contextlib.suppress(OSError):
                self._last = path, sha256(path)
        if self._last is None:
            return None
        _, digest = self._last
        return digest


class Provenance:
    """Adds to the first record what made the run, and to each the hash of its file."""

    def __init__(self, run: AddedJson) -> None:
        """Prepare; `run` is what the first record gets."""
        self._run: AddedJson = run
        self._hashes = FileHashes()

    def __call__(self, record: Record) -> Record:
        """Return the record with what is added to it."""
        added: AddedJson = {}
        digest = self._hashes.of(record.origin, record.picture)
        if digest is not None:
            added["sha256"] = digest
        if record.file_stamp is not None:
            added["file_stamp"] = record.file_stamp
        added = {**added, **self._run}
        self._run = {}
        if not added:
            return record
        return replace(record, added=added)
