"""Processes that end while records are still being made: no abort, nothing on stderr."""

import os
import signal
import subprocess
import sys

import number_video
import pytest
from thinning import thin

pytestmark = pytest.mark.slow

OPEN = """
import gc, itertools, os, signal, sys, threading
from detcli import Detector, predict

model, source = sys.argv[1:]
detector = Detector(model, device="cpu")


def begin():
    records = predict(source, detector)
    next(records)
    return records


"""

ENDINGS = {
    "held by a global": "records = begin()",
    "inside a with block of the detector": "with detector:\n    records = begin()\n    sys.exit(0)",
    "after a with block of the detector": "with detector:\n    records = begin()",
    "inside a with block of the records": (
        "records = predict(source, detector)\nwith records:\n    next(records)\n    sys.exit(0)"
    ),
    "zip": "records = predict(source, detector)\npairs = list(zip(range(1), records))",
    "islice": "part = itertools.islice(predict(source, detector), 2)\nnext(part)",
    "a closed detector": "records = begin()\ndetector.close()",
    "several at once": "runs = [begin() for _ in range(3)]",
    "never started": "records = predict(source, detector)",
    "a cycle": "gc.disable()\ncycle = [begin()]\ncycle.append(cycle)\ndel cycle",
    "a collected cycle": "cycle = [begin()]\ncycle.append(cycle)\ndel cycle\ngc.collect()",
    "a running thread": (
        "threading.Thread(target=lambda: list(predict(source, detector)), daemon=True).start()\n"
        "records = begin()"
    ),
}

NEEDS_FORK = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")


@pytest.fixture
def run_script(make_model):
    """Run a script that leaves records early, over a video or a folder of images."""

    def run(script, source):
        # Python 3.12 warns of a fork of a process with threads, which is what is tested.
        options = ["-W", "ignore:This process:DeprecationWarning"]
        command = [sys.executable] + options + ["-c", OPEN + script, str(make_model()), str(source)]
        # The command line, if it ran in this process, has told OpenCV to report other things.
        environment = {name: value for name, value in os.environ.items() if "OPENCV" not in name}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=100, check=False, env=environment
        )

    return run


@pytest.fixture
def long_film_path(tmp_path):
    return number_video.write(tmp_path / "film.avi", 200, code="MJPG")


def assert_quiet(finished, code=0):
    assert finished.stderr == ""
    assert finished.returncode == code


@pytest.fixture
def many_images(make_image, tmp_path):
    """A folder of more images than are read ahead."""
    for number in range(40):
        make_image(f"images/{number}.png", ("red", 1, 1), size=(640, 640))
    return tmp_path / "images"


@pytest.mark.parametrize("ending", thin("videos that are left early", ENDINGS, 2))
def test_a_video_that_is_left_early_does_not_abort_the_process(run_script, long_film_path, ending):
    assert_quiet(run_script(ENDINGS[ending], long_film_path))


@pytest.mark.parametrize("ending", thin("images that are left early", ENDINGS, 3))
def test_images_that_are_left_early_do_not_abort_the_process(run_script, many_images, ending):
    assert_quiet(run_script(ENDINGS[ending], many_images))


def test_sys_exit_between_records_keeps_its_exit_code(run_script, long_film_path):
    script = "for record in predict(source, detector):\n    sys.exit(7)"
    assert_quiet(run_script(script, long_film_path), code=7)


@NEEDS_FORK
def test_ctrl_c_between_records_ends_as_it_does_without_them(run_script, long_film_path):
    # Whoever started the tests in the background ignores SIGINT, and Python then takes it as well.
    script = (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "records = begin()\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    finished = run_script(script, long_film_path)
    assert finished.stderr.endswith("\nKeyboardInterrupt\n")
    assert finished.returncode in {-signal.SIGINT, 128 + signal.SIGINT}


@NEEDS_FORK
def test_a_fork_of_a_process_with_open_records_ends(run_script, long_film_path):
    # The child has no thread that could end the video, and waits for it.
    script = (
        "from detcli.source import sources\n"
        "sources.CLOSE_TIMEOUT_S = 0.5\n"
        "records = begin()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    records.close()\n"
        "    sys.exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5\n"
    )
    assert_quiet(run_script(script, long_film_path))


@NEEDS_FORK
def test_a_child_of_multiprocessing_ends(run_script, long_film_path):
    script = (
        "import multiprocessing\n"
        "records = begin()\n"
        "child = multiprocessing.get_context('fork').Process(target=print)\n"
        "child.start()\n"
        "child.join(60)\n"
        "assert child.exitcode == 0\n"
    )
    assert_quiet(run_script(script, long_film_path))
