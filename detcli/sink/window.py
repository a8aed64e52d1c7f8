"""A window that shows annotated images."""

import contextlib
import math
import os
import subprocess
import sys
from ctypes.util import find_library

import numpy as np

from detcli.core.errors import OutputError
from detcli.core.opencv import cv2
from detcli.data.geometry import Letterbox, Pixels
from detcli.data.record import Record
from detcli.sink.colours import BLACK
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.draw_labels import MIN_TEXT, draw_label
from detcli.sink.protocol import Stopped

WINDOW = "detcli"
MAX_SIZE = (720, 1280)  # height and width to which a window for a larger image is scaled

NEXT_KEYS = frozenset([ord(" "), ord("\r"), ord("\n")])
END_KEYS = frozenset([ord("q"), ord("Q"), ord("\x1b")])
KEY_NAMES = "space: next, q: end"

# How long to wait for a key before the next frame, or before checking the window again.
FRAME_MS = 1
IMAGE_MS = 50

# Without a display, OpenCV's window library ends the process instead of returning an error.
PROBE = """if True:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import cv2
    cv2.namedWindow("detcli")
    cv2.waitKey(1)
"""
PROBE_TIMEOUT_S = 30

LIBRARIES = ("GL", "xcb", "glib-2.0")
"""The libraries without which an OpenCV with windows does not load on Linux."""


class WindowSink:
    """Shows each annotated image until a key is pressed, and videos as their frames come.

    Several cameras and streams are shown in one window, side by side.
    """

    def __init__(self, style: Style = DEFAULT_STYLE) -> None:
        """Check that a window can be opened; it opens with the first image.

        Raises:
            OutputError: No window can be opened.
        """
        # The Qt in OpenCV warns about fonts that this window does not use.
        os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")
        check_display()
        self._style = style
        self._size = (0, 0)  # height and width of the last image; 0 before the first
        # Live sources are shown in a grid, row by row: the index of each one's cell, by source.
        self._cell_numbers: dict[str, int] = {}
        self._grid_image: Pixels = np.zeros((0, 0, 3), np.uint8)

    def write(self, record: Record) -> None:
        """Show the annotated image or frame of a record; an image waits for a key.

        Raises:
            Stopped: The user pressed q or Escape, or closed the window.
        """
        if record.picture is None or record.detections is None:
            return
        origin = record.origin
        image = annotate(record.picture.pixels, record.detections, self._style, record.overlay)
        title = origin.source
        is_still = origin.frame is None
        if is_still:
            title = f"{origin.source} ({KEY_NAMES})"
        is_live = origin.video is not None and origin.video.live
        if is_live:
            self._draw_in_grid(origin.source, image)
            if len(self._cell_numbers) > 1:
                title = f"{len(self._cell_numbers)} streams"
                image = self._grid_image
        self._show(image, title)
        self._wait_for_key(is_still=is_still)

    def _show(self, image: Pixels, title: str) -> None:
        """Show an image in the window, which is opened or resized first.

        Raises:
            Stopped: The user closed the window.
        """
        height, width = image.shape[:2]
        self._open_or_resize(height, width)
        # Lone surrogates, which a file name can hold, would crash OpenCV.
        cv2.setWindowTitle(WINDOW, title.encode(errors="replace").decode())
        cv2.imshow(WINDOW, image)

    def _wait_for_key(self, *, is_still: bool) -> None:
        """Wait until the next image may be shown: after a key, or at once after a frame.

        Args:
            is_still: Whether an image is shown, and not a frame of a video.

        Raises:
            Stopped: The user pressed q or Escape, or closed the window.
        """
        wait_ms = IMAGE_MS if is_still else FRAME_MS
        while True:
            key = cv2.waitKey(wait_ms)
            if key in END_KEYS or not _is_open():
                raise Stopped
            if key in NEXT_KEYS or not is_still:
                return

    def _open_or_resize(self, height: int, width: int) -> None:
        """Open the window, or resize it if the size of the images has changed.

        A window for an image larger than MAX_SIZE is smaller, in the proportions of the image.

        Args:
            height: Of the image to show, in pixels.
            width: Likewise.

        Raises:
            Stopped: The user closed the window.
        """
        is_first_image = self._size == (0, 0)
        if is_first_image:
            flags = cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO | cv2.WINDOW_GUI_NORMAL
            cv2.namedWindow(WINDOW, flags)
        elif not _is_open():
            raise Stopped

        if self._size != (height, width):
            letterbox = Letterbox.fit((height, width), MAX_SIZE, enlarge=1)  # 1: not enlarged
            window_height, window_width = letterbox.resized
            cv2.resizeWindow(WINDOW, window_width, window_height)
            self._size = height, width

    def _draw_in_grid(self, source: str, frame: Pixels) -> None:
        """Draw the frame of a live source into its cell of the grid, with the source's name.

        A new source makes the grid as large as needed, in which all cells are black until the next
        frames of their sources.

        Args:
            source: The name of the camera or stream.
            frame: `(H, W, 3)`, which is scaled to fit the cell.
        """
        is_new_source = source not in self._cell_numbers
        cell_number = self._cell_numbers.setdefault(source, len(self._cell_numbers))
        source_count = len(self._cell_numbers)
        column_count = math.ceil(math.sqrt(source_count))
        row_count = math.ceil(source_count / column_count)
        max_height, max_width = MAX_SIZE
        cell_height = max_height // row_count
        cell_width = max_width // column_count
        if is_new_source:
            grid_shape = (row_count * cell_height, column_count * cell_width, 3)
            self._grid_image = np.zeros(grid_shape, np.uint8)

        row, column = divmod(cell_number, column_count)
        top = cell_height * row
        left = cell_width * column
        cell = self._grid_image[top : top + cell_height, left : left + cell_width]
        _draw_in_corner(cell, frame)
        draw_label(cell, source, (0, 0), BLACK, MIN_TEXT)

    def close(self) -> None:
        """Close the window, if it was opened."""
        if self._size != (0, 0):
            with contextlib.suppress(cv2.error):  # the user closed it
                cv2.destroyWindow(WINDOW)


def _draw_in_corner(cell: Pixels, frame: Pixels) -> None:
    """Draw a frame into a cell, scaled to fit, at its top left corner; the rest becomes black."""
    cell[:] = 0
    letterbox = Letterbox.fit(frame.shape[:2], cell.shape[:2], corner=True)
    frame_height, frame_width = letterbox.resized
    resized_frame = cv2.resize(frame, (frame_width, frame_height), interpolation=cv2.INTER_AREA)
    cell[:frame_height, :frame_width] = resized_frame


def _is_open() -> bool:
    """Return whether the window is open, which the user may close at any time."""
    try:
        return cv2.getWindowProperty(WINDOW, cv2.WND_PROP_VISIBLE) >= 1
    except cv2.error:
        return False


def check_display() -> None:
    """Check that a window can be opened; on Linux, by opening one in another process.

    Raises:
        OutputError: No window can be opened; the message says why.
    """
    is_windows_or_mac = sys.platform in {"win32", "darwin"}  # these always have a display
    hint = "leave out --show and use --save DIR; over ssh, connect with ssh -X"
    display_variables = {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"}
    has_display = is_windows_or_mac or bool(display_variables & os.environ.keys())
    if not has_display:
        raise OutputError("cannot show images: there is no display (DISPLAY is not set)", hint)

    if not cv2.currentUIFramework():
        install_command = "pip install --force-reinstall --no-deps opencv-python"
        has_libraries = is_windows_or_mac or all(find_library(library) for library in LIBRARIES)
        if not has_libraries:
            install_command = f"apt-get install libgl1 libglib2.0-0, then {install_command}"
        raise OutputError(
            "cannot show images: this OpenCV is built without windows",
            f"use --save DIR; or {install_command}",
        )

    if not is_windows_or_mac:
        _probe_window(hint)


def _probe_window(hint: str) -> None:
    """Open a window in another process, since OpenCV ends the process if that fails.

    Args:
        hint: What the user can do instead.

    Raises:
        OutputError: The process ended with an error, or the display does not answer.
    """
    from detcli.core.packages import python_executable

    command = [python_executable("--show", "use --save DIR"), "-P", "-c", PROBE]
    try:
        process = subprocess.run(  # noqa: S603 - this Python, and a constant
            command, check=False, capture_output=True, errors="replace", timeout=PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise OutputError("cannot show images: the display does not answer", hint) from None
    if process.returncode:
        reason = "no window opens"
        for line in process.stderr.splitlines():
            if "display" in line:
                reason = line.removeprefix("qt.qpa.xcb: ").strip()
                break
        raise OutputError(f"cannot show images: {reason}", hint)
