"""System, processor, memory and terminal."""

import contextlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import TextIO

from detcli.commands.doctor.report import Memory, Processor, System, Terminal
from detcli.commands.doctor.surroundings import is_container, is_wsl, read_text
from detcli.commands.shared.reports import processor_name

# Instruction sets that decide how fast a network runs, of x86 and of Arm, as Linux names them.
FEATURES = re.compile(
    r"sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512(f|bw|dq|vl|_vnni|_bf16|_fp16)|amx_\w+"
    r"|asimd|asimdhp|asimddp|fphp|sve2?|i8mm|bf16|sme"
)

UNLIMITED = 1 << 60  # what version 1 of cgroups writes for no limit, give or take a page


def describe_system(root: Path = Path("/")) -> System:
    """Describe the operating system."""
    linux = sys.platform.startswith("linux")
    return System(
        name=platform.system(),
        release=platform.release(),
        distribution=_distribution(),
        architecture=platform.machine(),
        libc=" ".join(platform.libc_ver()).strip() or None,
        container=is_container(root) if linux else None,
        wsl=linux and is_wsl(),
    )


def describe_processor(root: Path = Path("/")) -> Processor:
    """Describe the CPU."""
    import psutil

    text = read_text(root / "proc/cpuinfo")
    return Processor(
        name=processor_name(root),
        features=_features(text),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cores=_usable_cores(),
        quota_cores=_quota(root),
    )


def describe_memory(root: Path = Path("/")) -> Memory:
    """Describe main memory."""
    import psutil

    total, available = None, None
    with contextlib.suppress(OSError):  # there is no /proc
        memory = psutil.virtual_memory()
        total, available = memory.total, memory.available
    limit = read_text(root / "sys/fs/cgroup/memory.max") or read_text(
        root / "sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    limited = limit.isdecimal() and int(limit) < UNLIMITED
    return Memory(total, available, int(limit) if limited else None)


def describe_terminal() -> Terminal:
    """Describe where text goes."""
    columns, rows, colours = None, None, None
    if _is_terminal(sys.stdout):
        from rich.console import Console

        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        colours = Console(file=sys.stdout).color_system
    return Terminal(
        stdin=_is_terminal(sys.stdin),
        stdout=_is_terminal(sys.stdout),
        stderr=_is_terminal(sys.stderr),
        columns=columns,
        rows=rows,
        colours=colours,
        encoding=getattr(sys.stdout, "encoding", None),
    )


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return None


def _features(cpuinfo: str) -> tuple[str, ...]:
    """Instruction sets; where Linux does not list them, those that NumPy found."""
    flags = _field(cpuinfo, "flags") or _field(cpuinfo, "Features")
    if flags:
        return tuple(flag for flag in flags.split() if FEATURES.fullmatch(flag))
    try:
        import numpy as np

        found = np.show_config(mode="dicts")["SIMD Extensions"]
    except (ImportError, KeyError, TypeError):
        return ()
    return (*found.get("baseline", ()), *found.get("found", ()))


def _usable_cores() -> int:
    """Cores that this process may use, as the backends count them, whose import NumPy may spoil."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(root: Path) -> float | None:
    """Cores' worth of time that a container grants, of cgroups' version 2 or 1."""
    quota, _, period = read_text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota = read_text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = read_text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return int(quota) / int(period)
    return None  # "max", or -1


def _field(cpuinfo: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else None
