"""Images and frames are found for records in any order."""

import contextlib

import number_video
import pytest

from detcli.config.inputs import InputOptions
from detcli.page.find_images import Finder


@pytest.fixture
def numbers_of_frames():
    """Find frames of a video one after the other; returns the number that each shows.

    None for a frame that is missing.
    """

    def find(path, frame_numbers):
        height, width = number_video.HEIGHT, number_video.SIZE[0]
        numbers = []
        with contextlib.closing(Finder(None, InputOptions())) as finder:
            for frame_number in frame_numbers:
                record = {
                    "source": str(path),
                    "frame": frame_number,
                    "height": height,
                    "width": width,
                }
                image = finder.read_image(record)  # type: ignore[arg-type]
                if image is None:
                    numbers.append(None)
                else:
                    numbers.append(number_video.number(image.pixels))
        return numbers

    return find


@pytest.mark.parametrize(
    "frame_numbers", [[0, 0], [2, 2, 5, 5], [7, 3, 4], [9, 0]], ids=["first", "same", "back", "end"]
)
def test_frames_are_found_in_any_order(tmp_path, numbers_of_frames, frame_numbers):
    path = number_video.write(tmp_path / "a.avi", 10, code="MJPG")
    assert numbers_of_frames(path, frame_numbers) == frame_numbers


def test_frames_are_found_after_one_that_a_cut_video_lacks(tmp_path, numbers_of_frames):
    path = number_video.write(tmp_path / "a.avi", 200, code="MJPG")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert numbers_of_frames(path, [30, 199, 198, 20, 21]) == [30, None, None, 20, 21]
