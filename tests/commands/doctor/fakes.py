"""Fake shared libraries, built with the system's compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return STATUS; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Made Up 9000", length);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? MAJOR : attribute == 76 ? MINOR : -1;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)8 << 30; return 0; }
"""


def compile_library(path: Path, code: str, *options: str) -> Path:
    """Build a shared library, or skip the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path)]
    # Libraries follow what uses them: some linkers drop those that nothing has used yet.
    command += ["-x", "c", "-", "-x", "none"] + list(options)
    subprocess.run(command, input=code, text=True, check=True)
    return path


def fake_driver(folder: Path, status=0, version=13000, gpus=1, capability=(9, 0)) -> Path:
    """Build an NVIDIA driver that gives the wanted answers."""
    numbers = {
        "STATUS": status,
        "VERSION": version,
        "COUNT": gpus,
        "MAJOR": capability[0],
        "MINOR": capability[1],
    }
    defines = [f"-D{name}={number}" for name, number in numbers.items()]
    return compile_library(folder / "libcuda.so.1", DRIVER, *defines)
