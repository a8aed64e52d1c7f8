"""Kinds of cores: some processors have fast ones, and slow ones that save energy."""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

NEARLY_AS_FAST = 0.9
"""The lowest fraction of the fastest core's speed for a core to count as one of its kind.

The best cores of a kind reach a few percent more than its others; a different kind is at least a
fifth slower.
"""

SPEED_FILES = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")
"""Where Linux says how fast a core is: relative to others on ARM, and the highest clock in kHz."""


def fastest_cores(root: Path = Path("/")) -> set[int]:
    """Find the cores of the fastest kind among those that this process may run on.

    Args:
        root: The root folder of the file system; another one in tests.

    Returns:
        Their numbers; empty if all are of the same kind, or if the system does not say how fast
        they are, as only Linux does.
    """
    if not hasattr(os, "sched_getaffinity"):
        return set()
    usable_cores = os.sched_getaffinity(0)
    for file in SPEED_FILES:
        speeds = {core: _speed(root, core, file) for core in usable_cores}
        if all(speeds.values()):
            lowest_speed = max(speeds.values()) * NEARLY_AS_FAST
            fast_cores = {core for core, speed in speeds.items() if speed >= lowest_speed}
            if fast_cores != usable_cores:
                return fast_cores
    return set()


def _speed(root: Path, core: int, file: str) -> int:
    """Read how fast a core is; 0 if unknown."""
    path = root / f"sys/devices/system/cpu/cpu{core}" / file
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def use_fastest_cores() -> None:
    """Restrict this process, and what it starts later, to the fastest kind of cores."""
    cores = fastest_cores()
    if not cores:
        log.info("--fast-cores: this process sees only one kind of cores")
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    log.info("--fast-cores: %s", ", ".join(str(core) for core in sorted(cores)))
