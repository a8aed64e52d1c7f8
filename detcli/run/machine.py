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
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from detcli import __version__
from detcli.backend.nvidia import DriverFacts, ask_driver, driver_version
from detcli.config.device import Device, available_cores
from detcli.core.text import pluralize
from detcli.data.geometry import Image
from detcli.data.record import (
    AddedJson,
    Origin,
    ProvenanceJson,
    Record,
    iso_time,
    with_added_fields,
)
from detcli.source.loading import STDIN
from detcli.storage.files import sha256


def describe_run(devices: Iterable[Device], precision: str | None) -> ProvenanceJson:
    """Describe the software and hardware of a run: versions, processor, GPUs and driver.

    It names neither the machine nor its user.

    Args:
        devices: The devices of the run; none of them is `auto`.
        precision: The lowest precision that the network uses, such as "float16"; None if unknown.
    """
    from detcli.backend.libraries import runtime_cuda
    from detcli.backend.session import onnxruntime

    gpu_ordinals = []  # in the order of the devices
    uses_openvino = False
    for device in devices:
        if device.is_gpu:
            gpu_ordinals.append(device.ordinal or 0)
        if device.unit is not None:  # only devices of OpenVINO have a unit: "openvino:CPU"
            uses_openvino = True

    if gpu_ordinals:
        gpus = _describe_gpus(gpu_ordinals)
    else:
        gpus = _UsedGpus()
    openvino_version = None
    if uses_openvino:
        openvino_version = package_version("openvino")

    return {
        "begun": iso_time(datetime.now(UTC)),
        "detcli": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "onnxruntime": onnxruntime.__version__,
        "runtime_cuda": runtime_cuda(),
        "openvino": openvino_version,
        "opencv": package_version("opencv-python", "opencv-python-headless"),
        "numpy": package_version("numpy"),
        "gpu": gpus.names,
        "driver": gpus.driver,
        "driver_cuda": gpus.driver_cuda,
        "precision": precision,
    }


class _UsedGpus(NamedTuple):
    """The GPUs of a run and their driver; None where there is none, or it is unknown."""

    names: str | None = None
    driver: str | None = None  # its version
    driver_cuda: str | None = None  # the newest version of CUDA that it supports


def _describe_gpus(ordinals: Iterable[int]) -> _UsedGpus:
    """Ask the driver for the GPUs with these ordinals."""
    driver_facts = ask_driver()
    names = ", ".join(_gpu_names(ordinals, driver_facts))
    return _UsedGpus(names or None, driver_version(), driver_facts.cuda)


def _gpu_names(ordinals: Iterable[int], driver_facts: DriverFacts) -> list[str]:
    """Return the distinct names of the given GPUs.

    Args:
        ordinals: The ordinals of the GPUs, as in "cuda:1".
        driver_facts: What the driver says about all GPUs.
    """
    names = []
    for ordinal in dict.fromkeys(ordinals):
        name = "unknown"
        if ordinal < len(driver_facts.gpus):
            name = driver_facts.gpus[ordinal].name
        names.append(name)
    return names


def processor_name(root: Path = Path("/")) -> str | None:
    """Ask the system for the name of the CPU, such as "AMD EPYC".

    Linux has it in a file, macOS has a command, and elsewhere Python may know it.

    Args:
        root: The root of the file system, which tests replace.

    Returns:
        The name; None if it is unknown.
    """
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
    """The version of the first of these packages that is installed; None if none is."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


class FileHashes:
    """Computes the SHA-256 of the files that images and frames come from.

    It remembers the hash of the last file, as a video has many frames.
    """

    def __init__(self) -> None:
        self._last_path: Path | None = None
        self._last_digest: str | None = None  # of that file; None if it could not be read

    def of(self, origin: Origin, image: Image | None = None) -> str | None:
        """Return the SHA-256 of the file that an image or a frame of a video comes from.

        Args:
            origin: Where it comes from.
            image: The image, if there is one. If it kept the content of its file, that is
                hashed, as the file may have changed since.

        Returns:
            The hash in hexadecimal; None if there is no file, or it can no longer be read.
        """
        if image is not None and image.file is not None:
            return hashlib.sha256(image.file).hexdigest()
        path = _regular_file_of(origin)
        if path is None:
            return None

        # The frames of a video have the same file, which is hashed once.
        if path == self._last_path and self._last_digest is not None:
            return self._last_digest
        digest = None
        with contextlib.suppress(OSError):
            digest = sha256(path)
        self._last_path = path
        self._last_digest = digest
        return digest


def _regular_file_of(origin: Origin) -> Path | None:
    """Return the path of the file that an image or a frame comes from; None if there is none.

    A pipe is not regarded as a file, as reading it again would wait forever.
    """
    path = origin.path
    if path is None and origin.frame is not None and origin.source != STDIN:
        path = Path(origin.source)  # a video file; an address does not exist as a path
    # An address may be too long for a file's name, for which pathlib raises an error.
    if path is None or not os.path.isfile(path):  # noqa: PTH113 - raises nothing
        return None
    return path


class Provenance:
    """Adds to each record the hash of its file, and to the first what the run was made with.

    For `--provenance`, which says what detections depend on.
    """

    def __init__(self, run: AddedJson) -> None:
        """Prepare to add fields to records.

        Args:
            run: The fields that the first record gets.
        """
        self._fields_of_run: AddedJson = run  # empty after the first record
        self._hashes = FileHashes()

    def __call__(self, record: Record) -> Record:
        """Return a record with the hash of its file; the first also with the fields of the run.

        A file without a hash, such as a pipe or a stream, adds nothing.
        """
        fields_of_file: AddedJson = {}
        digest = self._hashes.of(record.origin, record.picture)
        if digest is not None:
            fields_of_file["sha256"] = digest
        if record.file_stamp is not None:
            fields_of_file["file_stamp"] = record.file_stamp
        added_fields: AddedJson = {**fields_of_file, **self._fields_of_run}
        self._fields_of_run = {}
        if not added_fields:
            return record
        return with_added_fields(record, added_fields)
