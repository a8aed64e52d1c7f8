"""A stderr that cannot be written to changes neither results nor exit codes."""

import contextlib
import os
import subprocess
import sys
from functools import partial

import pytest
from json_lines import column_of, lines

pytestmark = pytest.mark.slow

if os.name != "posix":
    pytest.skip("needs pipes and terminals", allow_module_level=True)


@contextlib.contextmanager
def gone(pair):
    """The writing end of a pipe or terminal whose other end is closed."""
    ours, theirs = pair()
    os.close(ours)
    yield theirs
    os.close(theirs)


reader_gone, terminal_gone = partial(gone, os.pipe), partial(gone, os.openpty)


@contextlib.contextmanager
def reader_stopped():
    """A pipe that nobody reads, and that is full already."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(theirs, bytes(4096))
    os.set_blocking(theirs, True)
    yield theirs
    os.close(theirs)
    os.close(ours)


@contextlib.contextmanager
def terminal_stopped():
    """A terminal that does not read, as after Ctrl-S."""
    ours, theirs = os.openpty()
    yield theirs
    os.close(theirs)
    os.close(ours)


@contextlib.contextmanager
def full_disk():
    """A file on a full disk."""
    with open("/dev/full", "w") as file:  # noqa: PTH123 - a device
        yield file.fileno()


KINDS = {
    "reader gone": reader_gone,
    "reader stopped": reader_stopped,
    "terminal gone": terminal_gone,
    "terminal stopped": terminal_stopped,
    "full disk": full_disk,
}


def run(kind, arguments):
    """Run the command line with such a stderr; its exit code and what it wrote to stdout."""
    with kind() as stderr:
        finished = subprocess.run(
            [sys.executable, "-m", "detcli"] + list(map(str, arguments)),
            check=False,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=60,
        )
    return finished.returncode, finished.stdout


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_records_and_exit_code_are_right(kind, make_model, make_image, tmp_path):
    for number in range(30):
        image = make_image(f"pics/{number:04}.png", ("red", 1, 1))
        if number % 4 == 0:
            image.write_bytes(b"torn")
    arguments = ["predict", tmp_path / "pics", "-m", make_model(), "--fail-if", "red>0"]
    code, stdout = run(kind, arguments + ["-vv"])
    assert code == 6
    assert column_of(lines(stdout), "index") == list(range(30))


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "none.onnx"],
        ["convert", "none.onnx", "-o", "x.onnx"],
        ["eval", "none.onnx", "--data", "none.yaml"],
        ["bench", "-m", "none.onnx", "none.jpg"],
        ["--wrong"],
    ],
)
def test_every_command_keeps_its_exit_code(arguments, invoke):
    finished = invoke(arguments)
    assert finished.stderr
    assert run(reader_gone, arguments) == (finished.returncode, "")


def test_a_closed_stderr_is_not_taken_by_a_file():
    """Native libraries write their messages to descriptor 2, whichever file that is."""
    link = (
        "import os, sys; sys.argv = ['detcli', *sys.argv[1:]]; from detcli.__main__ import main\n"
        "try: main()\n"
        "finally: print(os.readlink('/proc/self/fd/2'))"
    )
    if not os.path.exists("/proc/self/fd"):  # noqa: PTH110 - not a file of the test
        pytest.skip("needs /proc")
    finished = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", link, "--version"],  # noqa: S607 - any sh
        check=True,
        capture_output=True,
        text=True,
    )
    assert finished.stdout.splitlines()[-1] == os.devnull
