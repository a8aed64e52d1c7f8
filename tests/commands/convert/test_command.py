"""`detcli convert`, run as a user runs it."""

import json
from dataclasses import replace
from pathlib import Path

import convolution_model
import numpy as np
import onnx
import pytest
from colour_model import build
from json_lines import column_of
from report_schemas import validator
from terminals import printed

from detcli.commands.convert import render
from detcli.commands.convert.comparison import Difference
from detcli.commands.convert.run import Conversion, File
from detcli.commands.convert.steps import Step
from detcli.data.record import box_of

NAMES = {"names": "['red', 'green', 'blue']", "stride": "8"}


@pytest.fixture
def convert(invoke, tmp_path):
    def run(model, *arguments, output="out.onnx", **options):
        return invoke("convert", model, "-o", tmp_path / output, arguments, **options)

    return run


@pytest.fixture
def colour_model_path(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(convolution_model.build("ultralytics", metadata=NAMES).SerializeToString())
    return path


@pytest.fixture
def square(make_image):
    return make_image("square.png", ("red", 1, 1))


def report_of(completed):
    report = json.loads(completed.stdout)
    validator("convert").validate(report)
    return report


def test_several_at_once(convert, colour_model_path, square, tmp_path):
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    options = ["--cut", "--half", "--keep-io", "--batch", "dynamic", "--guard-transpose"]
    options += ["--names", tmp_path / "names.txt", "--metadata", "author=me = you"]
    options += ["--metadata", "stride=", "--image", square]
    completed = convert(colour_model_path, options)
    assert completed.returncode == 0
    assert completed.stderr == ""
    report = report_of(completed)
    assert report["written"]
    steps = column_of(report["steps"], "name")
    assert steps == ["names", "metadata", "cut", "batch", "half", "guard-transpose"]
    assert report["difference"]["source"] == str(square)
    assert report["output"]["batch"] is None
    converted = onnx.load(tmp_path / "out.onnx")
    assert {entry.key: entry.value for entry in converted.metadata_props} == {
        "names": "{0: 'one', 1: 'two', 2: 'three'}",
        "author": "me = you",
    }


def test_predict_uses_the_result(convert, invoke, colour_model_path, square, tmp_path):
    assert convert(colour_model_path, "--int8", "--calibrate", square).returncode == 0
    assert convert(colour_model_path, "--end-to-end", output="end.onnx").returncode == 0
    for path in (colour_model_path, tmp_path / "out.onnx", tmp_path / "end.onnx"):
        completed = invoke("predict", square, "-m", path, "--conf", 0.6)
        (detection,) = json.loads(completed.stdout)["detections"]
        assert detection["class_name"] == "red"
        assert box_of(detection) == (8, 8, 16, 16)


def test_without_an_image_the_built_in_image_is_used(convert, colour_model_path):
    difference = report_of(convert(colour_model_path, "--cut"))["difference"]
    assert difference["source"] == "street.jpg"
    assert difference["old"] > 0
    completed = convert(colour_model_path, "--cut")
    assert completed.returncode == 2
    assert "already exists" in completed.stderr
    assert convert(colour_model_path, "--cut", "--force").returncode == 0


def test_above_the_tolerance(convert, colour_model_path, tmp_path):
    completed = convert(colour_model_path, "--half", "--tolerance", "score=0,boxes=0")
    assert completed.returncode == 6
    assert not report_of(completed)["written"]
    assert "was not written: " in completed.stderr
    assert "--tolerance" in completed.stderr
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "there is nothing to do"),
        (["--int8"], "--int8 needs --calibrate"),
        (["--batch", "many"], "--batch 'many' must be 1 or more, or dynamic"),
        (["--batch", 0], "--batch '0' must be 1 or more, or dynamic"),
        (["--batch", -1], "--batch '-1' must be 1 or more, or dynamic"),
        (["--imgsz", 0], "--imgsz: 0 is not in the range"),
        (["--imgsz", 16385], "--imgsz: 16385 is not in the range"),
        (["--end-to-end", "--max-det", 0], "--max-det: 0 is not in the range x>=1"),
        (["--metadata", "author"], "is not KEY=VALUE"),
        (["--metadata", "=me"], "is not KEY=VALUE"),
        (["--cut", "--tolerance", "iou=1"], "'iou' is unknown"),
        (["--imgsz", "100"], "stride, 8"),
        (["--calibrate", "pics"], "--calibrate needs --int8 or --half"),
        (["--cut", "--calibrate", "pics"], "--calibrate needs --int8 or --half"),
        (["--half", "--recursive"], "--recursive needs --calibrate"),
        (["--keep-io"], "--keep-io needs --half"),
        (["--half", "--max-det", 5], "--max-det needs --end-to-end"),
        (["--cut", "--end-to-end"], "--cut and --end-to-end are mutually exclusive"),
        (["--half", "--int8"], "--half and --int8 are mutually exclusive"),
        (["--metadata", "a=1", "--metadata", "a=2"], "--metadata gives a twice: '1' and '2'"),
        (["--cut", "--tolerance", "score=1", "--tolerance", "score=2"], "two numbers for score"),
    ],
)
def test_refused_conversions(convert, colour_model_path, tmp_path, arguments, why):
    completed = convert(colour_model_path, arguments)
    assert completed.returncode == 2
    assert why in completed.stderr
    assert "hint: " in completed.stderr
    assert "Traceback" not in completed.stderr
    assert completed.stdout == ""
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("-", "--output cannot write to standard output"),
        ("s3://bucket/a.onnx", "--output cannot write to an object store"),
    ],
)
def test_a_conversion_needs_a_file_on_a_disk(invoke, colour_model_path, output, why):
    completed = invoke("convert", colour_model_path, "--half", "--output", output)
    assert completed.returncode == 2
    assert why in completed.stderr
    assert completed.stdout == ""


@pytest.mark.parametrize("option", ["--image", "--calibrate"])
def test_the_images_of_a_conversion_are_never_overwritten(
    convert, colour_model_path, square, option
):
    before = square.read_bytes()
    completed = convert(colour_model_path, "--half", option, square, "--force", output=square.name)
    assert completed.returncode == 2
    assert "is one of the inputs" in completed.stderr
    assert square.read_bytes() == before


def test_files_that_cannot_be_read(convert, colour_model_path, tmp_path):
    (tmp_path / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    for name in ("torn.jpg", "none.jpg"):
        completed = convert(colour_model_path, "--cut", "--image", tmp_path / name)
        assert completed.returncode == 3
        assert f"{name}: " in completed.stderr
    completed = convert(colour_model_path, "--int8", "--calibrate", tmp_path / "torn.jpg")
    assert completed.returncode == 3
    assert "no image to calibrate on" in completed.stderr
    assert "warning: " in completed.stderr
    completed = convert(tmp_path / "none.onnx", "--cut")
    assert completed.returncode == 4
    assert not (tmp_path / "out.onnx").exists()


def test_quiet_hides_warnings(convert, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(build(metadata={"names": "['a']"}, dtype=np.float32).SerializeToString())
    assert "names 1 class" in convert(path, "--cut").stderr
    assert convert(path, "--cut", "--force", "-q").stderr == ""


PAGE = Path(__file__).parents[3] / "docs/convert.md"


def test_the_page_explains_each_pass():
    page = PAGE.read_text(encoding="utf-8")
    for option in ("--cut", "--half", "--int8", "--batch", "--imgsz", "--names"):
        assert f"| `{option}" in page


def test_the_copy_keeps_what_only_its_folder_or_the_user_said(convert, invoke, square, tmp_path):
    """The copy is elsewhere and is given no option."""
    folder = tmp_path / "hub"
    folder.mkdir()
    model = folder / "model.onnx"
    model.write_bytes(build("body", size=None, metadata={"stride": "8"}).SerializeToString())
    processor = {"size": {"height": 64, "width": 64}, "do_normalize": False}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    labels = {"model_type": "x", "id2label": {"0": "a", "1": "b", "2": "c"}}
    (folder / "config.json").write_text(json.dumps(labels))
    options = ("--preprocess", "bgr", "--box-format", "cxcywh", "--image", square)
    completed = convert(model, "--metadata", "contract", options)
    assert completed.returncode == 0, completed.stderr
    report = json.loads(invoke("inspect", tmp_path / "out.onnx", "--format", "json").stdout)
    detector, metadata = report["detector"], report["metadata"]
    assert metadata["detcli.preprocess"] == detector["preprocessing"]
    assert detector["preprocessing"].startswith("stretch,bilinear,bgr,scale=0.0039")
    assert set(detector["preprocessing_origins"].values()) == {"metadata detcli.preprocess"}
    assert detector["names"] == ["a", "b", "c"]
    assert detector["default_size"] == [64, 64]
    assert metadata["detcli.box_format"] == "cxcywh"
    assert detector["box_format"] == "cxcywh"


REPORT = Conversion(
    model=File("in.onnx", "ab" * 32, 9_500_000, (384, 640), 1),
    output=File("out.onnx", "cd" * 32, 4_700_000, None, None),
    written=True,
    steps=(
        Step("cut", changed=False, finding="0 nodes dropped", nodes=289),
        Step("half", changed=True, finding="some", nodes=300),
    ),
    difference=Difference(
        source="bus.jpg",
        conf=0.25,
        old=5,
        new=4,
        pairs=4,
        over=1,
        borderline=2,
        missing=1,
        extra=0,
        largest_score=0.01234,
        largest_corner=1.5,
        score_tolerance=0.02,
        corner_tolerance=2,
        boxes_tolerance=0.01,
        batch=0.00123,
    ),
    failures=(),
)
SHOWN = """\
model  in.onnx, 9.5 MB, 640x384, batch 1 (abababababab)
cut    0 nodes dropped (nothing to do); 289 nodes
half   some; 300 nodes
compared on  bus.jpg
above 0.25   5 boxes before, 4 after, 4 pairs
disagree     1 missing, 0 extra, 1 beyond the tolerance; 2 at the confidence threshold
score        differs by 0.0123 (allowed 0.02)
corners      differ by 1.5 pixels (allowed 2)
in a batch   the output differs by 0.00123 of its largest value
written: out.onnx, 4.7 MB, any size, any batch (cdcdcdcdcdcd)
"""


def text_of(report):
    return printed(render(report))


def test_what_people_see():
    assert text_of(REPORT) == SHOWN
    quiet = replace(REPORT, difference=replace(REPORT.difference, borderline=0, batch=None))
    assert "threshold" not in text_of(quiet)
    assert "in a batch" not in text_of(quiet)
    output = replace(REPORT.output, path="a\x1b[31m\rb")
    refused = replace(REPORT, written=False, failures=("too far", "very far"), output=output)
    assert text_of(refused).endswith("not written: a\\x1b[31m\\rb\n  too far\n  very far\n")
    assert "\x1b" not in text_of(replace(REPORT, output=output))
