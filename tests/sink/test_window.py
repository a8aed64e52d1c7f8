"""The window, mostly with a fake of OpenCV's."""

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from sample_records import Film, failed_frame, failure, frame, image

from detcli.core.errors import OutputError
from detcli.data.geometry import Image
from detcli.sink import window
from detcli.sink.draw import annotate
from detcli.sink.protocol import Stopped
from detcli.sink.window import WindowSink

pytestmark = pytest.mark.slow

NOTHING = -1  # no key was pressed


class Display:
    """Stands in for OpenCV's windows: notes what is shown, and presses keys."""

    error = cv2.error
    WINDOW_NORMAL = 1
    WINDOW_KEEPRATIO = 2
    WINDOW_GUI_NORMAL = 4
    WND_PROP_VISIBLE = 4

    def __init__(self):
        self.keys = []
        self.closed_after = None  # looks at the window until its user closes it
        self.pictures = []
        self.titles = []
        self.sizes = []
        self.waits = []
        self.open = False

    def currentUIFramework(self):  # noqa: N802 - OpenCV's names
        return "QT"

    def namedWindow(self, _name, _flags):  # noqa: N802
        self.open = True

    def setWindowTitle(self, _name, title):  # noqa: N802
        title.encode()  # OpenCV ends the process
        self.titles.append(title)

    def resizeWindow(self, _name, width, height):  # noqa: N802
        self.sizes.append((width, height))

    def imshow(self, _name, pixels):
        assert self.open
        self.pictures.append(pixels)

    def waitKey(self, milliseconds):  # noqa: N802
        self.waits.append(milliseconds)
        return self.keys.pop(0) if self.keys else NOTHING

    def getWindowProperty(self, _name, _property):  # noqa: N802
        if self.closed_after is not None:
            self.closed_after -= 1
            self.open = self.open and self.closed_after >= 0
        return float(self.open)

    def destroyWindow(self, _name):  # noqa: N802
        if not self.open:
            raise cv2.error("there is no such window")
        self.open = False

    def __getattr__(self, name):
        return getattr(cv2, name)


@pytest.fixture
def display(monkeypatch):
    """A display on which windows open."""
    fake = Display()
    monkeypatch.setattr(window, "cv2", fake)
    monkeypatch.setattr(window, "check_display", lambda: None)
    return fake


@pytest.fixture
def probe(monkeypatch):
    """Fake the process that tries to open a window: what it answers, or the error."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(window, "cv2", Display())
    monkeypatch.setenv("DISPLAY", ":9")
    run = Mock(side_effect=AssertionError("it was tried"))
    monkeypatch.setattr(subprocess, "run", run)
    return run


def test_detections_are_drawn_and_frames_do_not_wait(display):
    record = frame(0, count=1)
    sink = WindowSink()
    sink.write(record)
    sink.write(frame(1))
    sink.write(frame(2))
    expected = annotate(record.picture.pixels, record.detections)
    np.testing.assert_array_equal(display.pictures[0], expected)
    assert (expected != record.picture.pixels).any()
    assert display.waits == [1, 1, 1]
    assert set(display.titles) == {"in/film.avi"}


def test_an_image_stays_until_a_key_is_pressed(display):
    display.keys = [NOTHING] * 5 + [ord("x"), NOTHING, ord(" ")]
    WindowSink().write(image())
    assert len(display.waits) == 8
    assert display.titles == ["a.jpg (space: next, q: end)"]


def test_live_sources_are_shown_side_by_side(display):
    """Each in a place of its own, whatever its size and however often its frames come."""
    sink = WindowSink()
    films = [Film(f"rtsp://host/{number}", 0.0, live=True) for number in range(3)]
    for turn in range(2):
        for number, film in enumerate(films):
            size = (40, 60) if number else (2000, 1000)
            sink.write(frame(turn, film, shade=50 * (number + 1 + turn), size=size))
    assert display.titles == [films[0].source, "2 streams"] + ["3 streams"] * 4
    assert display.sizes == [(360, 720), (1280, 720)]
    wall = display.pictures[-1]
    assert wall.shape == (720, 1280, 3)
    assert wall[300, 50].tolist() == [100] * 3  # narrow, at the left of its place
    assert wall[300, 400].tolist() == [0] * 3
    assert wall[300, 900].tolist() == [150] * 3
    assert wall[700, 200].tolist() == [200] * 3
    assert not wall[370:, 640:].any()  # nobody's


def test_one_live_source_keeps_its_size(display):
    sink = WindowSink()
    for number in range(3):
        sink.write(frame(number, Film("camera:0", 0.0, live=True)))
    assert display.sizes == [(60, 40)]
    assert set(display.titles) == {"camera:0"}


@pytest.mark.parametrize("key", [ord("q"), ord("Q"), 27])
@pytest.mark.parametrize("record", [image(), frame(0)], ids=["picture", "frame"])
def test_a_key_ends_the_run(display, record, key):
    display.keys = [key]
    sink = WindowSink()
    with pytest.raises(Stopped), contextlib.closing(sink):
        sink.write(record)
    assert not display.open


@pytest.mark.parametrize("record", [image(), frame(0)], ids=["picture", "frame"])
def test_closing_the_window_ends_the_run(display, record):
    display.closed_after = 0
    sink = WindowSink()
    with pytest.raises(Stopped), contextlib.closing(sink):
        sink.write(record)
    assert not display.open


def test_a_closed_window_is_not_opened_again(display):
    sink = WindowSink()
    sink.write(failure())  # what failed shows nothing
    sink.write(failed_frame(0))
    sink.write(frame(0))
    display.open = False
    with pytest.raises(Stopped):
        sink.write(frame(1))
    assert len(display.pictures) == 1


@pytest.mark.parametrize(
    ("image_sizes", "window_sizes"),
    [
        ([(40, 60), (40, 60), (80, 60)], [(60, 40), (60, 80)]),
        ([(3000, 4000)], [(960, 720)]),
        ([(100, 12800), (9000, 1)], [(1280, 10), (1, 720)]),
    ],
)
def test_the_window_has_the_size_of_the_image_and_fits_the_screen(
    display, image_sizes, window_sizes
):
    sink = WindowSink()
    display.keys = [ord(" ")] * len(image_sizes)
    for height, width in image_sizes:
        pixels = Image.whole(np.zeros((height, width, 3), np.uint8))
        sink.write(replace(image(), picture=pixels))
    assert display.sizes == window_sizes


def test_any_name_can_be_a_title(display):
    display.keys = [ord(" ")] * 4
    for source in ("猫.jpg", "\udcff.jpg", "new\nline", ""):
        WindowSink().write(image(source))
    assert len(display.titles) == 4


COULD_NOT = "qt.qpa.xcb: could not connect to display :9\nqt.qpa.plugin: Could not load\n"


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [
        (-6, COULD_NOT, "images: could not connect to display :9$"),
        (-6, "", "no window opens"),
        (1, "Traceback\nImportError: libGL", "no window opens"),
    ],
)
def test_a_window_that_cannot_open_is_an_output_error(probe, code, stderr, reason):
    probe.side_effect = None
    probe.return_value = subprocess.CompletedProcess([], code, "", stderr)
    with pytest.raises(OutputError, match=reason) as caught:
        WindowSink()
    assert "--save" in caught.value.hint


def test_a_display_that_does_not_answer_is_an_output_error(probe):
    probe.side_effect = subprocess.TimeoutExpired("python", 30)
    with pytest.raises(OutputError, match="does not answer") as caught:
        WindowSink()
    assert "--save" in caught.value.hint


@pytest.mark.usefixtures("probe")
def test_without_a_display_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(Display, "currentUIFramework", lambda _: "")
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(OutputError, match="there is no display") as caught:
        WindowSink()
    assert "--save" in caught.value.hint


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    ("library", "libraries_first"),
    [("lib.so", ""), (None, "apt-get install libgl1 libglib2.0-0, then ")],
)
def test_an_opencv_without_windows_is_not_tried(monkeypatch, library, libraries_first):
    # Where both builds are installed, uninstalling one would leave neither. Without the libraries
    # of a desktop, the build without windows is there on purpose.
    monkeypatch.setattr(Display, "currentUIFramework", lambda _: "")
    monkeypatch.setattr(window, "find_library", lambda _: library)
    with pytest.raises(OutputError, match="built without windows") as caught:
        WindowSink()
    command = "pip install --force-reinstall --no-deps opencv-python"
    assert caught.value.hint == f"use --save DIR; or {libraries_first}{command}"


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_other_systems_have_a_display(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delenv("DISPLAY")
    WindowSink().close()


SHOW = """if True:
    import sys
    sys.path.insert(0, sys.argv[1])
    from sample_records import frame
    from detcli.core.errors import OutputError
    from detcli.sink.window import WindowSink
    try:
        sink = WindowSink()
    except OutputError as error:
        print(error)
    else:
        for number in range(3):
            sink.write(frame(number, count=1))
        sink.close()
        print("shown")
"""


def show(**environment):
    """Show frames in another process, and return its output."""
    inherited = {key: value for key, value in os.environ.items() if "DISPLAY" not in key}
    command = [sys.executable, "-c", SHOW, str(Path(__file__).parents[1])]
    process = subprocess.run(
        command, env=inherited | environment, capture_output=True, text=True, check=True, timeout=60
    )
    return process.stdout.strip(), process.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="displays have names on Linux")
@pytest.mark.parametrize("environment", [{}, {"DISPLAY": ":987"}, {"WAYLAND_DISPLAY": "none"}])
def test_opencv_does_not_end_the_process_without_a_display(environment):
    stdout, stderr = show(**environment)
    assert stdout.startswith("cannot show images: ")
    assert stderr == ""


def test_a_real_window(tmp_path):
    server = shutil.which("Xvfb")
    if server is None or not cv2.currentUIFramework():
        pytest.skip("Xvfb, or an OpenCV with windows, is not installed")
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [server, "-displayfd", "1", "-nolisten", "tcp"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            number = process.stdout.readline().strip()
            assert number, (tmp_path / "log").read_text()
            assert show(DISPLAY=f":{number}") == ("shown", "")
        finally:
            process.terminate()
