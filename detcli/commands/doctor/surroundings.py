"""What the system says of NVIDIA's hardware and driver, without asking the driver."""

import os
import platform
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # of PCI: a GPU with and without a screen

DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia0")

VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)")


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """One of the driver's files in /dev.

    Attributes:
        path: As in "/dev/nvidia0".
        group: Its group, if being in that would be enough; None else.
    """

    path: str
    group: str | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around the driver.

    Attributes:
        hardware: Whether the machine has an NVIDIA GPU; None where the system does not tell.
        driver: Version of the kernel's part of the driver; None where that is not loaded.
        container: Whether this is a container; None where nobody can tell.
        wsl: Whether this is Linux inside Windows.
        distribution: Names of the Linux distribution and of those it stems from.
        closed: Files of the driver that this user may not open.
        hidden: Whether CUDA_VISIBLE_DEVICES is set, which may hide GPUs.
    """

    hardware: bool | None = None
    driver: str | None = None
    container: bool | None = None
    wsl: bool = False
    distribution: tuple[str, ...] = ()
    closed: tuple[DeviceFile, ...] = ()
    hidden: bool = False


def look_around(root: Path = Path("/")) -> Surroundings:
    """Read what the system shows.

    Args:
        root: Where its file system begins.
    """
    hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    if not sys.platform.startswith("linux"):
        hardware = False if sys.platform == "darwin" else None
        return Surroundings(hardware=hardware, hidden=hidden)
    return Surroundings(
        hardware=_hardware(root),
        driver=_driver_version(root),
        container=is_container(root),
        wsl=is_wsl(),
        distribution=_distribution(),
        closed=tuple(_closed_files(root)),
        hidden=hidden,
    )


def is_container(root: Path = Path("/")) -> bool:
    """Whether this Linux is that of a container."""
    signs = (".dockerenv", "run/.containerenv", "run/systemd/container")
    return "KUBERNETES_SERVICE_HOST" in os.environ or any((root / sign).exists() for sign in signs)


def is_wsl() -> bool:
    """Whether this is Linux inside Windows, which shares Windows' driver."""
    return "microsoft" in platform.release().lower()


def _hardware(root: Path) -> bool | None:
    """Whether the PCI bus has a GPU of NVIDIA's; None where the bus is not shown."""
    if (root / "proc/driver/nvidia/version").exists():
        return True
    devices = list((root / "sys/bus/pci/devices").glob("*"))
    if not devices:
        return None  # some virtual machines, sandboxes, WSL, and boards without the bus
    return any(
        read_text(device / "vendor") == NVIDIA_VENDOR
        and read_text(device / "class").startswith(DISPLAY_CLASSES)
        for device in devices
    )


def _driver_version(root: Path) -> str | None:
    found = VERSION.search(read_text(root / "proc/driver/nvidia/version"))
    return found[1] if found else None


def _distribution() -> tuple[str, ...]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    return (release.get("ID", ""), *release.get("ID_LIKE", "").split())


def _closed_files(root: Path) -> list[DeviceFile]:
    """Those that exist and cannot be read and written."""
    closed = []
    for name in DEVICE_FILES:
        path = root / "dev" / name
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            closed.append(DeviceFile(f"/dev/{name}", _useful_group(path)))
    return closed


def _useful_group(path: Path) -> str | None:
    """The group whose members may read and write a file, if it is one made for devices.

    Another one may be named after a person.
    """
    import grp

    status = path.stat()
    if status.st_mode & (stat.S_IRGRP | stat.S_IWGRP) != stat.S_IRGRP | stat.S_IWGRP:
        return None
    try:
        name = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return None
    return name if name in {"video", "render"} else None


def read_text(path: Path) -> str:
    """The text of a small file; empty where that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
