"""What tests of commands share: a command line without a process of its own."""

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

if TYPE_CHECKING:
    from backend.cuda.libcuda import FakeDriver

    from detcli.backend.cuda.decoder import CudaDecoder


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line within the test's process: a second faster than `detcli`."""
    from detcli.app import app

    def run(*arguments: object, cwd: os.PathLike | None = None) -> subprocess.CompletedProcess[str]:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        command = [str(argument) for argument in arguments]
        with warnings.catch_warnings():  # the commands choose which warnings to show, and how
            result = CliRunner().invoke(app, command, prog_name="detcli")
        logging.disable(logging.NOTSET)
        return subprocess.CompletedProcess(command, result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def gpu_decoders(driver: "FakeDriver", monkeypatch: pytest.MonkeyPatch) -> "list[CudaDecoder]":
    """The decoders that are opened; `--device cuda` runs on the tests' driver."""
    import onnxruntime
    from backend.cuda.doubles import StreamSession
    from backend.cuda.nvdecode import Codec, Video

    from detcli.backend import cuda
    from detcli.backend.cuda.backend import CudaBackend
    from detcli.backend.cuda.decoder import CudaDecoder
    from detcli.backend.cuda.driver import Gpu
    from detcli.backend.cuda.network import Network

    def open_backend(model, device, options):
        assert options.cuda_graph is not True
        gpu = Gpu(0)
        session = onnxruntime.InferenceSession(model.graph, providers=["CPUExecutionProvider"])
        network = Network(StreamSession(session, driver, gpu), model.contract, device=("cpu", 0))
        return CudaBackend(gpu, network, model.contract, str(device))

    def open_decoder(_):
        gpu = Gpu(0)
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", Codec(gpu))
        monkeypatch.setitem(sys.modules, "PyNvVideoCodec", Video(gpu))
        opened.append(CudaDecoder(gpu))
        return opened[-1]

    opened: list[CudaDecoder] = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "PyNvVideoCodec" or None)
    monkeypatch.setattr(cuda, "open_backend", open_backend)
    monkeypatch.setattr(cuda, "open_decoder", open_decoder)
    return opened
