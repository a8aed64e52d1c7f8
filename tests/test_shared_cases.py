"""Small inputs that were read wrongly once, in ../shared/cases; skipped where they are not.

Each row names a file, what is typed, and what has to come of it. Right pixels are those that the
readers below take from the file's bytes, which know no more than these files hold.
"""

import io
import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import json_lines
import numpy as np
import optional
import pytest
from folders import files_in
from json_lines import column_of

pytestmark = pytest.mark.slow

FEW = ["--device", "cpu", "--format", "jsonl"]


def read_netpbm(data):
    """The RGB pixels of a PGM, PPM or PAM, whose maximum becomes 1."""
    if data.startswith(b"P7"):
        header, _, body = data.partition(b"ENDHDR\n")
        fields = {}
        for line in header.splitlines()[1:]:
            name, value = line.split(b" ", 1)
            fields[name] = value
        width = int(fields[b"WIDTH"])
        height = int(fields[b"HEIGHT"])
        depth = int(fields[b"DEPTH"])
        maximum = int(fields[b"MAXVAL"])
        values = np.frombuffer(body, np.uint8, width * height * depth)
    else:
        header = re.match(rb"P([356])\s+(\d+)\s+(\d+)\s+(\d+)\s", data)
        kind = int(header[1])
        width = int(header[2])
        height = int(header[3])
        maximum = int(header[4])
        depth = 1 if kind == 5 else 3
        body = data[header.end() :]
        if kind == 3:
            values = np.array(body.split(), int)
        else:
            values = np.frombuffer(body, np.uint8 if maximum < 256 else ">u2")
    pixels = values.reshape(height, width, depth) / maximum
    if depth in {1, 2}:
        return np.repeat(pixels[..., :1], 3, axis=2)
    return pixels[..., :3]


def read_bitmap(data):
    """The RGB pixels of a BMP of 32 bits with a mask for each channel."""
    start, width, height = struct.unpack_from("<10xI4xii", data)
    words = np.frombuffer(data, "<u4", width * abs(height), start).reshape(abs(height), width)
    channels = []
    for mask in struct.unpack_from("<III", data, 54):
        lowest_bit = mask & -mask
        channels.append((words & mask) / lowest_bit / (mask // lowest_bit))
    pixels = np.stack(channels, axis=2)
    return pixels[::-1] if height > 0 else pixels


def read_tiff(data):
    """The RGB pixels of a TIFF without compression, as another library has them."""
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        values = page.asarray()
        if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and values.ndim == 3:
            values = np.moveaxis(values, 0, -1)
        is_negative = page.photometric == tifffile.PHOTOMETRIC.MINISWHITE
    pixels = values.astype(float)
    if values.dtype == np.uint32:
        pixels /= 255  # the file holds an image of 8 bits in wider numbers
    elif values.dtype.kind == "u":
        pixels /= np.iinfo(values.dtype).max
    if is_negative:
        pixels = 1 - pixels
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., np.newaxis], 3, axis=2)
    return pixels[..., :3]


@dataclass(frozen=True)
class Pixels:
    """An image file, and how its bytes become pixels."""

    name: str
    read: Callable[[bytes], np.ndarray]
    may_be_refused: bool = True


PIXELS = [
    Pixels("p5_1023.pgm", read_netpbm, may_be_refused=False),
    Pixels("p6_4095.ppm", read_netpbm, may_be_refused=False),
    Pixels("p6_100.ppm", read_netpbm, may_be_refused=False),
    Pixels("p5_15.pgm", read_netpbm, may_be_refused=False),
    Pixels("p3_1023.ppm", read_netpbm, may_be_refused=False),
    Pixels("rgb.pam", read_netpbm),
    Pixels("rgba.pam", read_netpbm),
    Pixels("bw.pam", read_netpbm),
    Pixels("b32rgb_mask.bmp", read_bitmap),
    Pixels("b32_10bit.bmp", read_bitmap),
    Pixels("rgba_unassoc.tif", read_tiff, may_be_refused=False),
    Pixels("unassoc16.tif", read_tiff, may_be_refused=False),
    Pixels("unassoc_f32.tif", read_tiff, may_be_refused=False),
    Pixels("miniswhitef32.tif", read_tiff, may_be_refused=False),
    Pixels("planarf32.tif", read_tiff),
    Pixels("planar_f64.tif", read_tiff),
    Pixels("planaru32.tif", read_tiff),
]


@pytest.fixture
def case(shared, tmp_path):
    """Copy a file or folder of the cases into the test's folder."""

    def copy(name):
        source, target = shared(f"cases/{name}"), tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        return target

    return copy


@pytest.fixture
def predict_case(detcli, shared, tmp_path):
    """Run `detcli predict` in the test's folder; records and the finished process."""

    def run(*arguments, model="cells.onnx"):
        model_path = shared(f"cases/{model}")
        process = detcli("predict", arguments, "-m", model_path, FEW, cwd=tmp_path)
        assert "a bug in detcli" not in process.stderr
        return json_lines.lines(process.stdout), process

    return run


@pytest.mark.parametrize("expected", PIXELS, ids=lambda expected: expected.name)
def test_pixels_are_those_of_the_file_or_refused(expected, case, predict_case, tmp_path):
    path = case(expected.name)
    case("secret.tif")  # whose pixels must not show in another image
    pixels = expected.read(path.read_bytes())
    cv2.imwrite(str(tmp_path / "right.png"), np.rint(pixels[..., ::-1] * 255).astype(np.uint8))
    records, process = predict_case("secret.tif", expected.name, "right.png", "--conf", "0.3")
    _, record, right = records
    if "error" in record:
        assert expected.may_be_refused, record["error"]
        assert record["error"]["type"] == "DecodeError"
        assert process.returncode == 3
        return
    assert right["detections"]
    assert sorted_positions(record) == sorted_positions(right)
    scores = sorted(column_of(record["detections"], "score"))
    right_scores = sorted(column_of(right["detections"], "score"))
    assert scores == pytest.approx(right_scores, abs=1.01 / 255)


def sorted_positions(record):
    """Class, x1 and y1 of each detection, sorted."""
    boxes = []
    for detection in record["detections"]:
        boxes.append((detection["class_name"], detection["x1"], detection["y1"]))
    return sorted(boxes)


@pytest.mark.parametrize("name", ["two_big.tif", "two_classic.tif", "anim.gif"])
def test_further_pages_and_frames_are_told(name, case, predict_case):
    case(name)
    _, process = predict_case(name)
    assert process.returncode == 0
    assert "only its first frame or page is used" in process.stderr


def test_a_video_cut_without_encoding_has_the_frames_that_players_show(case, predict_case):
    case("cut_by_ffmpeg.mp4")
    records, process = predict_case("cut_by_ffmpeg.mp4")
    assert len(records) == 30
    assert process.returncode == 0, process.stderr


def test_a_cover_is_not_the_video(case, predict_case):
    case("cover_first.mp4")
    records, process = predict_case("cover_first.mp4")
    assert len(records) == 60
    for record in records:
        assert record["width"] == 64
        assert record["height"] == 64
    assert process.returncode == 0, process.stderr


def test_a_saved_video_keeps_the_shape_of_its_pixels(case, predict_case, tmp_path):
    av = pytest.importorskip("av")
    case("sar.mp4")
    _, process = predict_case("sar.mp4", "--save", "out")
    assert process.returncode == 0, process.stderr
    with av.open(str(tmp_path / "out" / "sar.mp4")) as saved:
        assert saved.streams.video[0].sample_aspect_ratio == 2


@pytest.mark.parametrize("name", ["pose2x2", "pose2x3", "pose17x2"])
def test_pose_labels_are_boxes(name, case, detcli, shared):
    folder = case(name)
    process = detcli(
        ("eval", shared("cases/cells.onnx"), "--data", folder / "data.yaml", "--device", "cpu"),
        "-q",
    )
    assert json.loads(process.stdout)["metrics"]["map50"] == pytest.approx(1), process.stderr


def test_a_label_line_that_is_there_twice_is_a_finding(case, detcli, shared):
    folder = case("dup")
    process = detcli(
        ("eval", shared("cases/cells.onnx"), "--data", folder / "data.yaml", "--device", "cpu"),
        "-q",
    )
    findings = json.loads(process.stdout)["findings"]
    assert any("twice" in finding["kind"] for finding in findings), findings


def test_ids_of_images_named_on_windows(case, predict_case, tmp_path):
    case("coco")
    options = ("--save-coco", "r.json", "--coco-images", "coco/win.json", "-q")
    _, process = predict_case("coco/images", "-r", options)
    assert process.returncode == 0, process.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    assert set(column_of(results, "image_id")) == {0, 1}


def test_a_list_that_powershell_wrote(case, predict_case, make_image):
    for name in case("list16le.txt").read_text("utf-16").split():
        make_image(name)
    records, process = predict_case("--files-from", "list16le.txt")
    assert len(records) == 2
    assert process.returncode == 0, process.stderr


def test_of_two_columns_of_images_one_is_named(case, predict_case):
    optional.require("pyarrow")
    case("twocol.parquet")
    _, process = predict_case("twocol.parquet")
    assert "mask" in process.stderr
    assert "image" in process.stderr


def test_members_of_one_name_are_each_there_once(case, predict_case, tmp_path):
    case("same.tar")
    predict_case("same.tar", "-o", "boxes.jsonl")
    _, process = predict_case("same.tar", "--resume", "boxes.jsonl")
    assert process.returncode == 0, process.stderr
    lines = (tmp_path / "boxes.jsonl").read_text().splitlines()
    assert len(lines) == 6


@pytest.mark.parametrize(
    "name", ["longnames400.tar", "paxes.tar", "int.parquet", "list.parquet", "str.parquet"]
)
def test_what_an_archive_holds_ends_no_run(name, case, predict_case):
    if name.endswith(".parquet"):
        optional.require("pyarrow")
    case(name)
    case("plain.png")
    records, process = predict_case(name, "plain.png")
    assert any("error" in record for record in records[:-1])
    assert records[-1]["source"] == "plain.png"
    assert records[-1]["detections"]
    assert process.returncode == 3


@pytest.mark.parametrize("name", ["cut_boundary.tar", "cut_header.tar"])
def test_the_missing_end_of_an_archive_is_an_error(name, case, predict_case):
    case(name)
    records, process = predict_case(name)
    assert len(records) == 3
    assert "error" in records[-1]
    assert process.returncode == 3


def test_confidences_of_classes_act_before_the_maximum(case, predict_case):
    case("plain.png")
    limits = ("--conf", "0.3,person=0.9", "--max-det", "2", "--box-format", "cxcywh")
    records, _ = predict_case("plain.png", limits, model="three.onnx")
    assert column_of(records[0]["detections"], "class_name") == ["car"]


@pytest.mark.parametrize("name", ["mpo.jpg", "exif.jpg", "motion.jpg"])
def test_an_image_of_a_blurred_dataset_is_made_anew(name, case, predict_case, tmp_path):
    original = case(name).read_bytes()
    options = ("--blur", "person", "--save-dataset", "data", "--box-format", "cxcywh")
    _, process = predict_case(name, options, "--conf", "0.99", model="three.onnx")
    assert process.returncode == 0, process.stderr
    (saved,) = [path for path in files_in(tmp_path / "data") if path.name == name]
    data = saved.read_bytes()
    assert data != original
    assert data.count(b"\xff\xd8\xff") == 1
    assert not re.search(rb"Exif|MPF|ftyp", data)
