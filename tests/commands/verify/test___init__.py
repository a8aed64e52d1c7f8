"""`detcli verify`, run as a user runs it."""

import json
import re
from pathlib import Path

import numpy as np
import pages
import pytest
import thinning
from colour_model import NAMES, build
from damaged_graphs import far_and_back
from graph_edits import producer_of
from json_lines import column_of
from saved_records import report_of

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs/verify.md"


def test_own_selection_against_the_graphs(verify, make_model, compared_images):
    completed = verify(make_model(tail="ultralytics"), "--images", compared_images, "--conf", 0.6)
    assert completed.returncode == 0
    assert completed.stderr == ""
    report = report_of(completed)
    assert report["agree"] is True
    assert report["right"]["selection"] == "graph"
    assert report["detections"]["pairs"] == 3


def test_the_users_model_but_not_the_confidence(
    verify, make_model, compared_images, tmp_path, monkeypatch
):
    model = make_model(tail="authors")
    (tmp_path / "detcli.toml").write_text(f'model = "{model}"\nconf = 0.9999\n')
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))
    report = report_of(verify("--images", compared_images))
    assert report["agree"] is True
    assert report["detections"]["conf"] == 0.25


def test_each_model_runs_with_the_suppression_that_it_recommends(
    reports, make_model, make_image, tmp_path
):
    """As predict runs it. Of two boxes whose IoU is 0.5, the first model drops one."""
    names = str(dict(enumerate(NAMES)))
    strict_metadata = {"names": names, "detcli.nms": "0.4"}
    strict = make_model("0.4.onnx", "one-to-many", metadata=strict_metadata, reach=1.5)
    lax_metadata = {"names": names, "detcli.nms": "0.9"}
    lax = make_model("0.9.onnx", "one-to-many", metadata=lax_metadata, reach=1.5)
    image = make_image("a.png", ("red", 2, 3), ("red", 3, 3))
    common = ["--images", image, "--conf", 0.6]
    certificate = tmp_path / "c.json"
    recommended = reports(6, strict, lax, common, "--certificate", certificate)["detections"]
    assert recommended["left"] == 1
    assert recommended["right"] == 2
    certified = json.loads(certificate.read_text())
    assert certified["left"]["settings"]["nms"] == 0.4
    assert certified["right"]["settings"]["nms"] == 0.9
    with_nms = reports(0, strict, lax, common, "--nms", 0.4)["detections"]
    assert with_nms["left"] == 1
    assert with_nms["right"] == 1


def test_two_models_that_differ(verify, make_model, broken, compared_images, tmp_path):
    arguments = [make_model(), broken, "--images", compared_images, "--conf", 0.6]
    completed = verify(arguments, "--bisect", "--report", tmp_path / "out")
    assert completed.returncode == 6
    report = report_of(completed)
    assert report["bisect"]["node"] == {"name": "low", "operator": "Sub"}
    assert column_of(report["tensors"], "agrees") == [True, False]
    assert len(pages.images(tmp_path / "out")) == 2
    complaint = completed.stderr.splitlines()[0]
    assert "the two sides do not agree" in complaint
    assert "100.00% of 6 boxes disagree" in complaint
    assert (
        "(and 2 more, see the report)\n  hint: --tolerance sets what is allowed" in completed.stderr
    )
    assert completed.stderr.count("\n") == 2
    completed = verify(arguments, "--bisect", "--format", "table", "-q")
    assert "first node that differs: Sub low" in completed.stdout
    complaint = completed.stderr.splitlines()[0]
    assert complaint == "detcli: error: the two sides do not agree"  # which differ, the table says
    assert "\n  hint: " in completed.stderr
    assert "\ndiffers: 100.00% of 6 boxes disagree" in completed.stdout
    assert "━" not in completed.stdout
    completed = verify(arguments)
    assert "--report DIR shows the images; --bisect names the first node" in completed.stderr
    completed = verify(arguments, "--tolerance", "boxes=100%")
    assert completed.returncode == 0
    assert report_of(completed)["tolerance"]["boxes"] == 1


def test_an_overflow_that_the_outputs_do_not_show(
    reports, verify, make_model, compared_images, tmp_path
):
    half = tmp_path / "half.onnx"
    half.write_bytes(far_and_back(build(dtype=np.float16), np.float16).SerializeToString())
    arguments = [make_model(), half, "--images", compared_images]
    assert verify(arguments).returncode == 0
    report = reports(6, arguments, "--bisect")
    assert report["bisect"]["node"]["name"] == "further"
    assert report["bisect"]["output"] is None
    assert "far overflows in half.onnx" in report["bisect"]["finding"]


def test_random_images(reports, make_model, broken):
    report = reports(6, make_model(), broken, "--random", 1, "--bisect")
    assert report["detections"] is None
    assert report["no_detections"].startswith("random images")
    assert report["bisect"]["node"]["name"] == "low"
    report = reports(0, make_model(), make_model("b.onnx"), "--random", 0, "--tensors")
    assert report["compared"] == 1
    assert report["agree"] is True
    assert set(column_of(report["tensors"], "source")) == {"random:0"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("{model}", 2, "no images to compare on"),
        ("{model} --images {pics}", 2, "nothing to compare colours.onnx with"),
        ("{model} --images {pics} --random 1", 2, "--images and --random are mutually exclusive"),
        ("{model} {model} --random 0", 2, "random images cannot compare detections"),
        ("{model} {model} --random 0 --tensors --iou 0.5", 2, "--iou is about detections"),
        ("{model} {model} --random 0 --tensors -r", 2, "--recursive needs --images"),
        ("{model} --random 1 --tensors --report {pics}/x", 2, "random images have none"),
        ("{model} --images {pics} --against cpu", 2, "both sides are the same"),
        ("{model} --images {pics} --against gpu", 2, "unknown device 'gpu'"),
        ("{model} --images {pics} --against graph", 2, "no selection of its own"),
        ("{model} {model} --images {pics} --tolerance x=1", 2, "'x' is unknown"),
        ("{model} {model} --images {pics} --iou 0", 2, "--iou is 0"),
        ("{model} {model} --images {pics} --iou 1.5", 2, "--iou is 1.5"),
        ("{model} {pics}/none.onnx --images {pics}", 4, "cannot read the model"),
        ("{model} {pics}/a.png --images {pics}", 4, "is not an ONNX model"),
        ("{model} {model} --images {pics}/none", 3, "no image could be compared"),
        ("", 2, "missing argument 'MODEL'"),
    ],
)
def test_a_request_that_cannot_be_met(verify, make_model, compared_images, arguments, code, says):
    completed = verify(arguments.format(model=make_model(), pics=compared_images).split())
    assert completed.returncode == code
    assert says in completed.stderr
    assert "Traceback" not in completed.stderr
    assert not (compared_images / "x").exists()


def test_two_that_find_nothing(verify, make_model, make_image):
    grey = make_image("grey.png")
    completed = verify(make_model(tail="authors"), "--images", grey, "--conf", 0.9)
    assert completed.returncode == 6
    assert "neither side found anything above 0.9" in completed.stderr
    assert not report_of(completed)["agree"]


def test_bisecting_needs_two_networks(verify, compared_images, tmp_path, make_model):
    """A graph's own selection follows the same network."""
    model = build("authors")
    producer_of(model.graph, "rank_u").input[0] = "class_index"
    (tmp_path / "tail.onnx").write_bytes(model.SerializeToString())
    completed = verify(tmp_path / "tail.onnx", "--images", compared_images, "--conf", 0.6)
    assert completed.returncode == 6
    assert "--bisect" not in completed.stderr
    completed = verify(
        make_model(), tmp_path / "tail.onnx", "--images", compared_images, "--against", "graph"
    )
    assert "--bisect names" in completed.stderr


def test_a_truncated_image(verify, make_model, compared_images):
    (compared_images / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    completed = verify(make_model(), make_model("b.onnx"), "--images", compared_images)
    assert completed.returncode == 3
    report = report_of(completed)
    assert report["agree"] is True
    assert report["compared"] == 2
    assert report["failed"][0]["source"].endswith("torn.jpg")
    assert "torn.jpg" in completed.stderr


def test_several_sources_and_subfolders(verify, make_model, compared_images, make_image):
    make_image("pics/deep/c.png", ("green", 1, 1))
    arguments = [make_model(), make_model("b.onnx"), "--images", compared_images]
    assert report_of(verify(arguments))["compared"] == 2
    assert report_of(verify(arguments, "--recursive"))["compared"] == 3
    assert report_of(verify(arguments, "--images", compared_images / "deep/c.png"))["compared"] == 3


@thinning.only_whole
def test_real_exports_agree(reports, shared):
    models = [shared("models/yolov10n-thu.onnx"), shared("models/yolov10n-ultralytics.onnx")]
    report = reports(0, models, "--images", shared("data/images"), "--tensors")
    assert report["detections"]["pairs"] == 7
    for tensor in report["tensors"]:
        assert tensor["max_scaled"] < 1e-5, tensor["name"]


def test_real_selection_agrees_with_the_graphs_down_to_the_last_row(reports, shared):
    arguments = ["--images", shared("data/images"), "--conf", 0]
    assert reports(0, shared("models/yolov10n-thu.onnx"), arguments)["detections"]["pairs"] == 600


def test_real_half_precision_stays_within_its_tolerance(reports, shared):
    models = [shared("models/yolov10n-raw.onnx"), shared("models/yolov10n-raw-fp16.onnx")]
    report = reports(0, models, "--images", shared("data/images"), "--tensors")
    assert report["right"]["precision"] == "float16"
    assert 0 < report["detections"]["largest_score_difference"] < 0.02


def test_the_tolerances_on_the_page():
    from detcli.compare.detections import COARSE, EXACT, REDUCED, Tolerance

    cell = r" ([\d.]+%?) \|"
    rows = re.findall(rf"^\| (\w+) \|{3 * cell}", PAGE.read_text(), re.MULTILINE)
    for column, tolerance in enumerate((EXACT, COARSE, REDUCED), start=1):
        values = {row[0]: float(row[column].rstrip("%")) for row in rows}
        values["boxes"] /= 100
        assert Tolerance(**values) == tolerance
