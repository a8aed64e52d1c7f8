"""The rules of MegaDetector's output format 1.6, as its specification and validator have them.

Written from https://lila.science/megadetector-output-format. Timelapse needs relative names with
forward slashes besides, and thresholds that are numbers.
"""

import json
import re

VIDEO_SUFFIXES = (".mp4", ".avi", ".mpeg", ".mpg", ".mov", ".mkv", ".flv")


def read_valid(path):
    """Read a file, check that it keeps the rules, and return what is in it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert set(content) == {"images", "detection_categories", "info"}
    assert isinstance(content["info"]["format_version"], str)
    assert content["info"]["format_version"] == "1.6"
    check_categories(content["detection_categories"])
    for entry in content["images"]:
        check_entry(entry, content["detection_categories"])
    check_metadata(content["info"].get("detector_metadata"))
    return content


def check_categories(categories):
    """Check that ids are numbers from 1 on as texts, and that no name is blank."""
    for category, name in categories.items():
        assert re.fullmatch("[1-9][0-9]*", category)
        assert isinstance(name, str)
        assert name.strip()


def check_entry(entry, categories):
    """Check the entry of an image or a video."""
    assert isinstance(entry["file"], str)
    assert "\\" not in entry["file"]
    is_failure = entry.get("failure") is not None
    is_video = entry["file"].lower().endswith(VIDEO_SUFFIXES)
    if is_failure:
        assert isinstance(entry["failure"], str)
        assert entry["detections"] is None
    else:
        for detection in entry["detections"]:
            check_detection(detection, categories)
            assert ("frame_number" in detection) == is_video
    if is_video:
        assert is_failure or entry["frame_rate"] > 0
        for frame in entry["frames_processed"]:
            assert isinstance(frame, int)


def check_detection(detection, categories):
    """Check the entry of a detection: its category, its score, and a box within the image."""
    assert detection["category"] in categories
    assert isinstance(detection["conf"], float)
    assert 0 <= detection["conf"] <= 1
    assert round(detection["conf"], 3) == detection["conf"]
    left, top, width, height = detection["bbox"]
    assert 0 <= left <= 1
    assert 0 <= top <= 1
    assert width >= 0
    assert height >= 0
    assert round(left + width, 6) <= 1
    assert round(top + height, 6) <= 1
    assert isinstance(detection.get("frame_number", 0), int)


def check_metadata(metadata):
    """Check the thresholds that Timelapse begins with, if there are any."""
    if metadata is not None:
        conservative = metadata["conservative_detection_threshold"]
        assert 0 <= conservative <= metadata["typical_detection_threshold"] <= 1
