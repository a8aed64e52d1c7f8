"""The GPU: its description, downloads from it, and recorded launches.

    PYTHONPATH=.:tests python -m benchmarks.gpu.devices

Prints the machine as JSON; exits with 5 and the reason where no GPU can be used.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np

from detcli.backend.cuda.topk import upload
from detcli.commands.bench.machine import GpuWatch, describe_machine, describe_software
from detcli.config.device import Device
from detcli.core.errors import DetcliError
from detcli.run.machine import package_version

PACKAGES = (
    "cuda-core cuda-bindings nvidia-cuda-nvrtc torch torchvision cupy-cuda13x cupy-cuda12x"
).split()


def describe() -> dict[str, object]:
    """The machine as `detcli bench` describes it, with the commit and what runs on the GPU."""
    watch = GpuWatch(Device.parse("cuda"))
    watch.stop()
    versions = {name: package_version(name) for name in PACKAGES}
    packages = describe_software() | versions
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        **asdict(describe_machine(watch.before)),
        "packages": {name: version for name, version in packages.items() if version},
    }


def commit() -> str:
    """The commit, with a mark for uncommitted changes; COMMIT where git does not know it."""
    if shutil.which("git"):
        command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
        described = subprocess.run(command, capture_output=True, text=True, check=False)
        if described.returncode == 0:
            return described.stdout.strip()
    return os.environ.get("COMMIT", "")


def upload_all(gpu, arrays, scope):
    """Upload arrays, each to memory of its own, which the scope frees."""
    memories = []
    for array in arrays:
        memory = upload(gpu, array)
        scope.callback(memory.close)
        memories.append(memory)
    return memories


def downloader(gpu, parts, scope) -> Callable[[], tuple[np.ndarray, ...]]:
    """Prepare to download arrays repeatedly, through page-locked memory.

    Args:
        gpu: Where they are.
        parts: Address, shape and dtype of each.
        scope: Frees the memory.

    Returns:
        A function that waits for the enqueued work and returns the arrays: views of memory that the
        next call overwrites.
    """
    copies = []
    arrays = []
    for address, shape, dtype in parts:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        staging = gpu.pin(size)
        scope.callback(staging.close)
        copies.append((staging.address, address, size))
        arrays.append(staging.array.view(dtype).reshape(shape))

    def download():
        for target, source, size in copies:
            gpu.copy(target, source, size)
        gpu.record().wait()
        return tuple(arrays)

    return download


class Watched:
    """Wraps a GPU and records the arguments of its launches, the kernel's name first."""

    def __init__(self, gpu):
        self._gpu, self.launches = gpu, []

    def __getattr__(self, name):
        return getattr(self._gpu, name)

    def launch(self, *arguments):
        """Launch a kernel."""
        self.launches.append(arguments)
        self._gpu.launch(*arguments)

    def graph(self):
        """Enqueue what is appended to a graph at once: its owner enqueues it right after."""
        return self

    def enqueue(self):
        """Do nothing more."""

    def again(self):
        """Each launched kernel's name, and a function that launches it again."""
        names_and_launches = []
        for arguments in self.launches:
            names_and_launches.append((arguments[0], partial(self._gpu.launch, *arguments)))
        return names_and_launches


def main() -> int:
    """Describe this machine if detcli can use its GPU."""
    try:
        from detcli.backend.cuda.driver import Gpu

        gpu = Gpu(0)
    except DetcliError as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 5
    print(json.dumps({"name": gpu.name, "capability": gpu.architecture} | describe()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
