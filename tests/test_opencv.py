"""If OpenCV does not load, the error says what to install."""

import ctypes
import os
import platform
import sys
import threading

import pytest

from detcli.opencv import cv2, library_messages, open_streams_in_parallel, silence_opencv

REASON = "libGL.so.1: cannot open shared object file: No such file or directory"


def environment(folder, code):
    """An environment in which `import cv2` runs this code."""
    package = folder / "broken" / "cv2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    return {**os.environ, "PYTHONPATH": str(package.parent)}


@pytest.fixture
def broken(tmp_path):
    """An environment in which `import cv2` fails as without libGL."""
    return environment(tmp_path, f"raise ImportError({REASON!r})\n")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"raise ImportError({REASON!r})\n", REASON),
        # Two builds over each other, and one was removed: a folder is left, which can be imported.
        ("", "cannot import name 'imdecode'"),
    ],
)
def test_the_error_names_the_packages(detcli, make_picture, tmp_path, code, reason):
    finished = detcli("predict", make_picture("a.jpg"), env=environment(tmp_path, code))
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    assert "bug" not in finished.stderr
    headless = "pip install --force-reinstall --no-deps opencv-python-headless"
    for part in (reason, "libgl1", headless):
        assert part in finished.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["schema"], ["predict", "--help"]]
)
def test_commands_without_pictures_work_without_opencv(detcli, broken, arguments):
    finished = detcli(*arguments, env=broken)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout


@pytest.mark.parametrize(("before", "after"), [(None, "-8"), ("32", "32")])
def test_ffmpeg_is_silenced_unless_the_user_sets_its_log_level(monkeypatch, before, after):
    if before is None:
        monkeypatch.delenv("OPENCV_FFMPEG_LOGLEVEL", raising=False)
    else:
        monkeypatch.setenv("OPENCV_FFMPEG_LOGLEVEL", before)
    level = cv2.utils.logging.getLogLevel()
    silence_opencv()
    cv2.utils.logging.setLogLevel(level)
    assert os.environ["OPENCV_FFMPEG_LOGLEVEL"] == after
    monkeypatch.delenv("OPENCV_FFMPEG_LOGLEVEL")


@pytest.mark.parametrize(
    ("system", "before", "after"),
    [("linux", None, "1"), ("linux", "0", "0"), ("win32", None, None), ("darwin", None, None)],
)
def test_streams_open_in_parallel_unless_the_user_says_otherwise(
    monkeypatch, system, before, after
):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv("OPENCV_FFMPEG_IS_THREAD_SAFE", before or "")
    if before is None:
        monkeypatch.delenv("OPENCV_FFMPEG_IS_THREAD_SAFE")
    open_streams_in_parallel()
    assert os.environ.get("OPENCV_FFMPEG_IS_THREAD_SAFE") == after


needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def c_prints(text):
    """Print to C's stderr, as libpng does."""
    library = ctypes.CDLL(None)
    library.fputs(text.encode(), ctypes.c_void_p.in_dll(library, "stderr"))


@needs_glibc
def test_what_c_libraries_print_is_collected(capfd):
    with library_messages() as lines:
        c_prints("libpng warning: ")
        c_prints("odd\n\n")
        sys.stderr.write("Python\n")
        c_prints("Corrupt\xff JPEG")
    c_prints("after\n")
    assert lines == ["libpng warning: odd", "Corrupt\xff JPEG"]
    assert capfd.readouterr().err == "Python\nafter\n"


@needs_glibc
def test_each_thread_gets_its_own_lines(capfd):
    """Nobody loses a line, and none is attributed to another's file."""
    together = threading.Barrier(4)
    found = {}

    def collect(name):
        for _ in range(200):
            together.wait(30)
            with library_messages() as lines:
                for part in (name, name, "\n"):
                    c_prints(part)
            found.setdefault(name, set()).update(lines)

    def only_print():
        for _ in range(200):
            together.wait(30)
            c_prints("other\n")

    names = ["a", "b", "c"]
    threads = [threading.Thread(target=collect, args=[name]) for name in names]
    threads.append(threading.Thread(target=only_print))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: {name * 2} for name in names}
    assert capfd.readouterr().err == "other\n" * 200
