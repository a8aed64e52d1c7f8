"""The most memory that this process has taken."""

import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int | None:
    """Peak resident bytes of this process; None where nobody tells.

    Linux's `ru_maxrss` would do, but a process inherits it from the one that started it.
    """
    if sys.platform == "linux":
        try:
            lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return None
        peak = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(peak[0]) * 1024 if peak else None
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
