"""What NVIDIA's driver tells about a GPU, by way of nvidia-smi, which comes with it."""

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from detcli.backend.device import Device
from detcli.backend.nvidia import count_gpus, gpu_uuid
from detcli.errors import DeviceError

ASKED = (
    "name,driver_version,memory.used,clocks_event_reasons.hw_slowdown,"
    "clocks_event_reasons.sw_thermal_slowdown,clocks_event_reasons.sw_power_cap"
)
REASONS = ("a hardware slowdown", "its temperature", "its power limit")
ACTIVE = "Active"

EVERY_MS = 500
PATIENCE_S = 20


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU at one moment.

    Attributes:
        name: As the driver calls it.
        driver: The driver's version.
        memory_bytes: In use by all programs; None if that is not told.
        slowed_by: What keeps its clocks down.
    """

    name: str
    driver: str
    memory_bytes: int | None
    slowed_by: tuple[str, ...]


class GpuWatch:
    """Looks at a GPU twice a second, from another process, until it is stopped.

    Attributes:
        before: The state in the beginning; None if there is no GPU, or nobody tells.
    """

    def __init__(self, device: str) -> None:
        """Begin.

        Args:
            device: As a user names it; of "auto", the first GPU.
        """
        self._command = _command(device)
        self.before = _ask(self._command)
        self._process: subprocess.Popen[str] | None = None
        if self.before is not None and self._command is not None:
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(  # noqa: S603 - found on the PATH
                    [*self._command, "-lms", str(EVERY_MS)], stdout=subprocess.PIPE, text=True
                )

    def stop(self) -> list[GpuState]:
        """What was seen, the last state included; further calls give nothing."""
        if self._process is None:
            return []
        last = _ask(self._command)
        self._process.terminate()
        try:
            told, _ = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            told, _ = self._process.communicate()
        self._process = None
        seen = [_read(line) for line in told.splitlines()]
        return [state for state in (*seen, last) if state is not None]


def _command(device: str) -> Sequence[str] | None:
    """What to ask about a device; None if it is no GPU, or nobody can be asked."""
    program = shutil.which("nvidia-smi")
    wanted = Device.parse(device)
    if program is None or not (wanted.is_gpu or wanted.is_auto):
        return None
    try:
        if not count_gpus():
            return None
        # CUDA and nvidia-smi count differently, and CUDA_VISIBLE_DEVICES hides some from CUDA.
        name = gpu_uuid(wanted.ordinal or 0)
    except DeviceError:
        return None
    return [program, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits", "-i", name]


def _ask(command: Sequence[str] | None) -> GpuState | None:
    if command is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - found on the PATH, as by any shell
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _read(done.stdout.strip()) if done.returncode == 0 else None


def _read(line: str) -> GpuState | None:
    """A line of its table; None if that is something else, such as half a line."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(ASKED.split(",")):
        return None
    name, driver, used, *states = cells
    slowed_by = tuple(why for why, state in zip(REASONS, states, strict=True) if state == ACTIVE)
    return GpuState(name, driver, int(used) << 20 if used.isdecimal() else None, slowed_by)
