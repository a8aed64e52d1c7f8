"""Runs the command line in a fork of a process that has its imports, which take most of a run."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import patient_threads  # noqa: F401 - children import this module before they run a command

from detcli.commands.bench import sampling
from detcli.source import sources

IMPORTED = [
    "cv2", "onnx", "onnxruntime", "orjson", "simplejpeg", "rich.progress", "rich.table",
    "tomllib", "detcli.cli.app", "detcli.run.pipeline", "detcli.backend.cpu",
    "detcli.backend.session", "detcli.commands.convert.run", "detcli.commands.inspect.examine",
    "detcli.commands.predict.run", "detcli.sink", "detcli.commands.inspect", "detcli.run",
    "detcli.model.editing", "detcli.model.recognise", "detcli.sink.labels", "detcli.sink.text",
    "detcli.sink.image", "detcli.sink.journal", "detcli.sink.video", "detcli.sink.dataset",
    "detcli.source.sources", "detcli.source.video",
]  # fmt: skip
"""What commands import when they run. Not huggingface_hub: it reads the environment then."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(IMPORTED)

READ_AT_THE_START = ("LD_LIBRARY_PATH", "OPENCV_IO_MAX_IMAGE_PIXELS", "PYTHONPATH")
"""Variables that change nothing in a process that runs already."""


def words_of(arguments):
    """The words of a command line; a list or a tuple in it stands for its words."""
    words = []
    for argument in arguments:
        if isinstance(argument, list | tuple):
            words.extend(words_of(argument))
        else:
            words.append(str(argument))
    return words


def can_run_in_fork(environment):
    """Whether a fork of this process behaves like a new process with these variables."""
    return all(environment.get(name) == os.environ.get(name) for name in READ_AT_THE_START)


def start(
    arguments,
    *,
    stdin=os.devnull,
    stdout=os.devnull,
    stderr=os.devnull,
    closed_streams=(),
    cwd=None,
    env=None,
):
    """Start `python -m detcli ARGUMENTS`, its streams being files, as a multiprocessing.Process.

    Args:
        arguments: See `words_of`.
        closed_streams: Descriptors of 0 to 2 that the command does not have.
    """
    environment = dict(os.environ if env is None else env)
    assert can_run_in_fork(environment)
    command = ["detcli"] + words_of(arguments)
    process = CONTEXT.Process(
        target=_child,
        args=(command, (stdin, stdout, stderr), closed_streams, cwd or Path.cwd(), environment),
    )
    process.start()
    return process


def run(arguments, *, input=None, text=True, timeout=60, **options):  # noqa: A002 - as in subprocess
    """What `subprocess.run` returns for `python -m detcli ARGUMENTS` with captured output."""
    words = words_of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        stdin = Path(folder, "stdin")
        stdout = Path(folder, "stdout")
        stderr = Path(folder, "stderr")
        stdin.write_bytes(input.encode() if isinstance(input, str) else input or b"")
        process = start(words, stdin=stdin, stdout=stdout, stderr=stderr, **options)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        output = stdout.read_bytes()
        errors = stderr.read_bytes()
    if text and not isinstance(input, bytes):
        output = output.decode()
        errors = errors.decode()
    return subprocess.CompletedProcess(words, process.exitcode, output, errors)


def _child(argv, streams, closed_streams, cwd, environment):
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for descriptor, (path, flags) in enumerate(
        zip(streams, (os.O_RDONLY, writing, writing), strict=True)
    ):
        os.dup2(os.open(path, flags), descriptor)
    for descriptor in closed_streams:
        os.close(descriptor)
    become(argv, cwd, environment, closed_streams)


def become(argv, cwd, environment, closed_streams=()):
    """Run the command line in this process, with its first three descriptors, and end it.

    Args:
        closed_streams: Those of the three that are closed.
    """
    os.fsync = os.fstat  # nothing waits for the disk, as in conftest.py
    sampling.MAX_WARM_UP_S = sampling.MIN_WARM_UP_S  # times are not stable where other tests run
    sources.FOLLOW_S = 0.1  # a test waits for several looks
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.stdin = _open_stream(0, "r", closed_streams)
    sys.stdout = _open_stream(1, "w", closed_streams)
    sys.stderr = _open_stream(2, "w", closed_streams, errors="backslashreplace")
    sys.argv = argv
    code = 0
    try:
        runpy.run_module("detcli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _open_stream(descriptor, mode, closed_streams, errors=None):
    """Open a standard stream; a closed one is None, as where Python starts without it."""
    if descriptor in closed_streams:
        return None
    return open(descriptor, mode, errors=errors, closefd=False)
