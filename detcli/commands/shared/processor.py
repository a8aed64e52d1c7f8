"""The processor's name."""

import platform
import re
import subprocess
import sys
from pathlib import Path


def processor_name(root: Path = Path("/")) -> str | None:
    """What the CPU calls itself, as in "AMD EPYC"; None where nobody tells.

    Args:
        root: Where the file system begins.
    """
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return found[1].strip()
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - a constant
        return done.stdout.strip() or None
    return platform.processor() or None
