"""Runs the command line in a fork of a process that has its imports, which take most of a run."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["cv2", "onnx", "onnxruntime", "detcli.app", "detcli.pipeline"])


def run(arguments, *, input=None, cwd=None, text=True, timeout=60):  # noqa: A002 - as in subprocess
    """What `subprocess.run` returns for `python -m detcli ARGUMENTS` with captured output."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        for path, content in zip(streams, (input, None, None), strict=True):
            path.write_bytes(content.encode() if isinstance(content, str) else content or b"")
        process = CONTEXT.Process(
            target=_child,
            args=(["detcli", *arguments], streams, cwd or Path.cwd(), dict(os.environ)),
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout)
        stdout, stderr = (path.read_bytes() for path in streams[1:])
    if text and not isinstance(input, bytes):
        stdout, stderr = stdout.decode(), stderr.decode()
    return subprocess.CompletedProcess(arguments, process.exitcode, stdout, stderr)


def _child(argv, streams, cwd, environment):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for descriptor, (path, flags) in enumerate(
        zip(streams, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
    ):
        os.dup2(os.open(path, flags), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = argv
    code = 0
    try:
        runpy.run_module("detcli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
