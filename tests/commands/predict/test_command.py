"""`detcli predict` as a user runs it."""

import csv
import io
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import onnx
import optional
import pytest
import query_model
import terminals
import thinning
from colour_model import NAMES, cell_box
from folders import contents_of
from graph_builder import Graph
from head_checks import shuffled, with_constant_nodes, with_fed_constants
from json_lines import column_of, lines, optional_column_of
from report_schemas import validator

from detcli.data.record import BOX, box_of


def classes(completed):
    """The classes that the only record names."""
    (record,) = completed.records
    validator("predict", strict=True).validate(record)
    return column_of(record["detections"], "class_name")


def test_an_image_gives_a_record(detcli, make_model, make_image):
    image = make_image("a.png", ("red", 2, 3))
    (record,) = lines(detcli("predict", image, "--model", make_model()).stdout)
    validator("predict", strict=True).validate(record)
    first = record.pop("detections")[0]  # the others are of the grey background
    box = dict(zip(BOX, cell_box(2, 3), strict=True))
    assert first == {"class_id": 0, "class_name": "red", "score": 1.0, **box}
    assert record == {
        "schema_version": 2,
        "source": str(image),
        "index": 0,
        "input": 0,
        "width": 64,
        "height": 64,
        "model": "colours",
        "device": "cpu",
    }


@pytest.mark.parametrize("change", [shuffled, with_constant_nodes, with_fed_constants])
def test_graphs_run_as_they_come(change, predict, invoke, tmp_path):
    onnx.save(change(query_model.build()), tmp_path / "odd.onnx")
    (record,) = predict("a.png -m odd.onnx").records
    assert list(box_of(record["detections"][0])) == cell_box(2, 3)
    assert invoke("inspect", "odd.onnx", cwd=tmp_path).returncode == 0


def test_rows_of_cells_without_a_batch_do_not_classify(predict, tmp_path):
    """As those of FastestDet and Yolo-FastestV2."""
    model = Graph()
    onnx.save(model.model([model("Reshape", "images", np.array([96, -1]))]), tmp_path / "rows.onnx")
    completed = predict("a.png -m rows.onnx", code=4, says="its output is not a detection head")
    assert "classifies" not in completed.stderr


@pytest.mark.parametrize("option", ["--fast-decode", "--no-fast-decode"])
def test_jpegs_are_decoded_into_the_devices_memory(option, predict, make_image, allocated):
    pytest.importorskip("simplejpeg")
    for name in ("b.jpg", "c.jpg"):
        make_image(name, ("red", 2, 3))
    completed = predict(f"b.jpg a.png c.jpg {option}")
    assert column_of(completed.records, "width") == [64] * 3
    assert allocated == [(64, 64)] * 2


@pytest.mark.parametrize(
    ("options", "expected_count"),
    [
        ("--conf 0.6", ["blue", "red"]),
        ("--conf 0.6 --max-det 1", ["blue"]),
        ("--conf 0.6 --classes red", ["red"]),
        ("--conf 0.6 --classes '2, red'", ["blue", "red"]),
        ("--conf 1", []),
        ("--conf 0.6,red=1", ["blue"]),
    ],
)
def test_conf_max_det_and_classes(options, expected_count, predict, make_image):
    make_image("two.png", ("red", 2, 3), ("blue", 1, 1))
    assert classes(predict(f"two.png {options}")) == expected_count


@pytest.mark.parametrize(("options", "count"), [("", 3 * 64), ("--unique", 64)])
def test_one_class_per_anchor(options, count, predict, make_image):
    """Grey scores equally in all three classes."""
    make_image("grey.png")
    assert len(classes(predict(f"grey.png --conf 0.3 {options}"))) == count


@pytest.mark.usefixtures("each_device")
def test_inputs_that_fail_are_records_and_the_others_complete(predict, tmp_path):
    (tmp_path / "torn.png").write_bytes((tmp_path / "a.png").read_bytes()[:-40])
    names = ["torn.png", "no/such.jpg", "a" * 300, "a.png"]
    completed = predict("--conf 0.6", names, code=3, says="1 image, 1 detection, 3 failed")
    for record in completed.records:
        validator("predict", strict=True).validate(record)
    assert column_of(completed.records, "source") == names
    errors = optional_column_of(completed.records, "error", {})
    types = ["DecodeError", "PlaceError", "PlaceError", None]
    assert optional_column_of(errors, "type") == types
    assert errors[1]["message"] == errors[2]["message"] == "no such file"
    assert len(completed.records[3]["detections"]) == 1
    assert "no/such.jpg: no such file" in completed.stderr


def test_an_image_on_stdin(detcli, make_model, make_image):
    image = make_image("a.png", ("red", 2, 3))
    finished = detcli("predict", "-", "-m", make_model(), "--conf", 0.6, input=image.read_bytes())
    record = json.loads(finished.stdout)
    assert record["source"] == "-"
    assert record["detections"][0]["class_name"] == "red"


def test_formats_and_output_files(predict, tmp_path):
    as_json = predict("a.png --conf 0.6 --format json").stdout
    assert json.loads(as_json)[0]["detections"][0]["class_name"] == "red"
    for name in ("out.json", "out.csv", "out.jsonl", "out"):
        assert predict(f"a.png --conf 0.6 --output {name}").stdout == ""
    assert (tmp_path / "out.json").read_text() == as_json
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))
    assert row["class_name"] == "red"
    assert row["x1"] == "16.0"
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "out").read_text()
    assert json.loads((tmp_path / "out.jsonl").read_text())["index"] == 0


def test_duckdb_reads_a_parquet_file(predict, tmp_path):
    duckdb = optional.require("duckdb")
    optional.require("pyarrow")
    assert predict("a.png --conf 0.6 --output out.parquet").stdout == ""
    column = duckdb.read_parquet(str(tmp_path / "out.parquet")).select("x1")
    assert column.fetchall() == [(16,)]


def test_a_dash_is_standard_output(predict, tmp_path):
    assert predict("a.png --format jsonl -o -").records == predict("a.png").records
    assert not (tmp_path / "-").exists()


def test_parquet_needs_its_library(predict, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "detcli.sink.parquet", raising=False)
    completed = predict("none.jpg -o x.parquet", code=1, says="pyarrow does not load")
    assert 'hint: pip install "detcli[parquet]"' in completed.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_save_keeps_the_paths_below_a_folder(predict, make_image, tmp_path):
    for name in ("x/a.png", "y/a.png", "b.png"):
        make_image(f"pics/{name}", ("red", 2, 3))
    predict("pics -r --save out --save-txt out/labels")
    out = tmp_path / "out"
    names = set()
    for path in out.rglob("[!.]*.*"):
        names.add(path.relative_to(out).as_posix())
    assert names == {
        "b.png",
        "x/a.png",
        "y/a.png",
        "labels/b.txt",
        "labels/x/a.txt",
        "labels/y/a.txt",
    }


def test_lines_and_labels_of_annotated_images(predict, make_model, make_image, tmp_path):
    image = make_image("large.png", ("red", 2, 3), size=(320, 320))
    make_model(size=None)
    saved = []
    for number, options in enumerate(("", "--labels none", "--line-width 5")):
        predict(f"large.png -q --save {number} {options}")
        drawn = cv2.imread(tmp_path / str(number) / "large.png")
        saved.append(np.count_nonzero(drawn != cv2.imread(image)))
    plain, without_labels, wide = saved
    assert 0 < without_labels < plain < wide


def test_a_dataset_on_which_the_model_is_perfect(
    predict, invoke, make_model, make_image, make_video, tmp_path
):
    """`eval` finds every box of it where the model found it."""
    make_model(size=None, batch=None)
    make_image("pics/a.png", ("red", 2, 3), ("blue", 5, 1))
    make_image("pics/b.jpg", ("green", 1, 1), size=(128, 64))
    make_image("pics/none.png")
    make_video(frames=3)
    dataset = tmp_path / "dataset"

    def files():
        predict("pics clip.mp4 --conf 0.6 -q --save-dataset dataset")
        return contents_of(dataset)

    before = files()
    assert len(list((dataset / "images").iterdir())) == 3 + 3
    command = ["eval", "colours.onnx", "--data", dataset / "data.yaml", "--format", "json"]
    assert json.loads(invoke(command).stdout)["metrics"]["map50_95"] == 1
    assert files() == before  # again, with nothing new


def test_an_input_is_never_overwritten(predict, tmp_path):
    before = (tmp_path / "a.png").read_bytes()
    predict("a.png --save .")
    predict("a.png --format csv -o a.png", code=2, says="is one of the inputs")
    assert (tmp_path / "a.png").read_bytes() == before


def test_a_table_on_a_terminal(warm_detcli, make_model, make_image):
    """Stdout is a pseudo-terminal."""
    arguments = ["predict", make_image("a.png", ("red", 2, 3)), "-m", make_model(), "--conf", 0.6]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(
        [warm_detcli / "detcli"] + list(map(str, arguments)),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        assert process.wait(60) == 0
    os.close(theirs)
    text = terminals.read_all(ours).decode()
    os.close(ours)
    assert "a.png  64x64" in text
    assert "red              1.00    16.0    24.0    24.0    32.0" in text
    assert "\x1b[3" not in text  # NO_COLOR


def test_quiet_and_verbose(detcli, predict, tmp_path):
    line = "a.png missing.png"
    quiet = predict(f"{line} -q", code=3)
    normal = predict(line, code=3, says="missing.png")
    verbose = detcli("predict", line.split(), "-m", "colours.onnx", "-v", cwd=tmp_path)
    assert quiet.stderr == "detcli: error: missing.png: no such file; hint: check the path\n"
    assert "body, xyxy boxes, 3 classes" in verbose.stderr
    assert quiet.stdout == normal.stdout == verbose.stdout


def test_without_conf_the_confidence_is_the_one_that_the_model_recommends(
    detcli, predict, make_model
):
    metadata = {"names": str(dict(enumerate(NAMES))), "detcli.conf": "0.6"}
    make_model(metadata=metadata)
    assert len(classes(predict())) == 1
    assert len(classes(predict("a.png --conf green=0.3"))) > 60  # the others as recommended
    assert len(classes(predict("a.png --conf 0.25"))) == 190
    cases = [
        ((), "0.6 (recommended for the model)"),
        (("--conf", 0.25), "0.25 (as asked for)"),
    ]
    for words, message in cases:
        completed = detcli("predict", "a.png", "-m", "colours.onnx", "-v", words)
        assert f"confidence: above {message}" in completed.stderr


def test_a_class_below_its_confidence_takes_no_place(predict, make_model, make_image):
    """Two red squares score 1, as the blue one does."""
    make_model(metadata={"names": str(dict(enumerate(NAMES)))})
    make_image("three.png", ("red", 1, 1), ("red", 3, 3), ("blue", 5, 5))
    class_names = classes(predict("three.png --conf 0.6,red=1 --max-det 2"))
    assert class_names == ["blue"]


def test_a_copy_of_a_model_recommends_a_confidence_for_each_class(detcli, predict, make_model):
    model = make_model(metadata={"names": str(dict(enumerate(NAMES)))})
    entry = "detcli.conf=0.6,green=0.3"
    detcli("convert", model, "-o", model.with_name("copy.onnx"), "--metadata", entry)
    expected_counts = {
        "": 64,
        "--conf green=0.6": 1,
        "--conf blue=0.3": 127,
        "--conf 0.25": 190,
        "--conf 0.6": 1,
    }
    for words, count in expected_counts.items():
        assert len(classes(predict(f"a.png -m copy.onnx {words}"))) == count, words
    (record,) = predict("a.png -m copy.onnx --provenance").records
    settings = record["settings"]
    assert settings["conf"] == 0.6
    assert settings["class_conf"] == {"1": 0.3}


def test_a_recommended_suppression_is_used_and_told(detcli, make_model, make_image):
    """Of two boxes whose IoU is 0.5, one is dropped, unless the file or the user says otherwise."""
    image = make_image("a.png", ("red", 2, 3), ("red", 3, 3))
    names = str(dict(enumerate(NAMES)))
    for metadata, words, count, iou, message in (
        ({}, (), 2, 0.7, "IoU above 0.7 (recommended for the model)"),
        ({"detcli.nms": "0.6"}, (), 2, 0.6, "IoU above 0.6 (recommended for the model)"),
        ({}, ("--nms", 1), 2, 1, "IoU above 1 (as asked for)"),
        ({"detcli.nms": "0.4"}, ("--nms", "none"), 2, None, "none (as asked for)"),
    ):
        model = make_model(tail="one-to-many", metadata=metadata | {"names": names}, reach=1.5)
        common = ("predict", image, "-m", model, "--conf", 0.6, words)
        completed = detcli(common, "-v", "--provenance")
        record = json.loads(completed.stdout)
        assert len(record["detections"]) == count
        assert record["settings"]["nms"] == iou
        assert completed.stderr.count(f"non-maximum suppression: {message}") == 1
        assert "suppression" not in detcli(common).stderr


@pytest.mark.usefixtures("each_device")
def test_running_out_of_memory_is_a_record(predict, make_model):
    make_model(size=None, metadata={"stride": "8"})
    (record,) = predict("a.png --imgsz 1000000", code=3).records
    assert record["error"]["type"] == "InferenceError"


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        ("--model none.onnx", 4, "cannot read the model none.onnx"),
        ("--model yolo10n", 4, "did you mean yolov10n"),
        ("--model yolov10n", 4, "cannot fetch yolov10n from http://127.0.0.1:9"),
        ("--device tpu", 2, "unknown device 'tpu'"),
        ("--half", 2, "--device tensorrt"),
        ("--device cpu --cuda-graph", 2, "needs one of NVIDIA"),
        ("--gpu-mem-limit lots", 2, "--gpu-mem-limit: 'lots' is not a size"),
        ("colours.onnx", 2, "colours.onnx is a model, not an input\n  hint: name it with -m"),
        ("--gpu-mem-limit 2", 2, "is 2 bytes"),
        ("--conf 2", 2, "use a confidence between 0 and 1"),
        ("--conf red=x", 2, "is not a number"),
        ("--conf 0.3,0.4", 2, "--conf '0.3,0.4' has two numbers without a name"),
        ("--conf red=0.3,0.2,red=0.3", 2, "has two numbers for red"),
        ("--conf 0.3,cat=0.5", 2, "no class 'cat'"),
        ("--max-det 0", 2, "--max-det is 0"),
        ("--nms 0", 2, "--nms is 0"),
        ("--nms off", 2, "--nms: 'off' is not a valid float"),
        ("--imgsz 33", 2, "takes 64x64 images only"),
        ("--rect", 2, "64x64 images only"),
        ("--classes gren", 2, "did you mean green"),
        ("--classes 3", 2, "no class '3'"),
        ("--classes 7", 2, "red, green, blue"),
        ("--classes ' ,'", 2, "--classes: ' ,' is an empty list"),
        ("--conf ,", 2, "--conf ',' is an empty list"),
        ("--output colours.onnx --format csv", 2, "is one of the inputs"),
        ("--output boxes.xlsx", 2, "the suffix .xlsx names no format"),
        ("--output no/such/folder/x.csv", 1, "cannot write no/such"),
        ("--format parquet", 2, "--format parquet needs --output"),
        ("--report page --output page/x.csv", 2, "nothing else"),
        ("--report page --save page", 2, "nothing else"),
        ("--names none.txt", 2, "cannot read names"),
        ("--files-from missing.txt", 2, "missing.txt"),
        ("--wrong", 2, "no such option: --wrong"),
        ("--resume a.jsonl -o b.jsonl", 2, "mutually exclusive"),
        ("--resume a.jsonl -o -", 2, "mutually exclusive"),
        ("--force", 2, "--resume"),
        ("--only-detections", 2, "--only-detections needs --save or --save-dataset or --report"),
        ("--line-width 3 --report page", 2, "--line-width needs --save or --show"),
        ("--labels name,score", 2, "--labels needs --save or --show"),
        ("--blur red --save-txt out", 2, "--blur needs --save or --save-crops or"),
        ("-0", 2, "--null needs --files-from"),
        ("-q -v", 2, "mutually exclusive"),
        ("--save-conf", 2, "--save-txt"),
        ("--save-coco x.json --resume a.jsonl", 2, "this run only"),
        ("--coco-images x.json", 2, "--save-coco"),
        ("--save-dataset data", 2, "does not list the classes of this model"),
        ("--fail-if cat>0", 2, "no class 'cat'"),
        ("--fail-if red>0 --classes blue", 2, "red is not among --classes"),
        ("--fail-if red>0 --resume a.jsonl", 2, "this run only"),
        ("--blur person --save out", 2, "the model has no class 'person'"),
        ("--blur , --save out", 2, "empty list"),
        ("--blur red,blue --classes blue --save out", 2, "add red to --classes"),
        ("--provenance -o a.csv", 2, "--provenance"),
        ("--provenance --format table", 2, "--provenance"),
        ("--provenance --format labelstudio", 2, "--provenance"),
        ("--provenance -o boxes/", 2, "--provenance"),
        ("--tile 640,overlap=2", 2, "between 0 and 0.9, not 2\n  hint: write 640,overlap=0.2"),
        (
            "--tile big",
            2,
            "is not SIZE, SIZE,overlap=SHARE or SIZE,crowd=COUNT\n  hint: write 640, 640,overlap",
        ),
        ("--zone left", 2, "--zone"),
        ("--zone left=0,0,1,1", 2, "--zone"),
        ("--zone @nowhere.txt", 2, "--zone"),
        ("--save-mot mot", 2, "--save-mot needs --track"),
    ],
)
def test_errors_have_a_message_and_an_exit_code(options, exit_code, words, predict, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/data.yaml").write_text("names: [cat]\n")
    before = set(tmp_path.rglob("*"))
    completed = predict(f"a.png {options}", code=exit_code, says=words)
    assert completed.stdout == ""
    assert "hint: " in completed.stderr
    assert set(tmp_path.rglob("*")) == before


def test_boxes_only_of_a_plain_detector_is_a_note(predict, caplog):
    caplog.set_level("INFO")
    for options, number in (("", 0), ("--boxes-only -v", 1)):
        predict(f"a.png {options}")
        assert caplog.text.count("--boxes-only leaves nothing out") == number


@pytest.mark.parametrize("device", ["cuda", "tensorrt:1"])
def test_without_a_gpu_nothing_else_is_said_to_be_missing(device, predict, monkeypatch):
    monkeypatch.setattr("detcli.backend.libraries.has_gpu", lambda: False)
    says = "detcli: error: this machine has no NVIDIA GPU\n  hint: use --device cpu\n"
    predict(f"a.png --device {device}", code=5, says=says)


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("best.pt", "PyTorch", "export it: yolo export model=best.pt format=onnx\n"),
        ("my best.PT", "PyTorch", 'yolo export model="my best.PT" format=onnx\n'),
        ("best.pth", "PyTorch", "torch.onnx.export"),
        ("best.safetensors", "weights without a network", "optimum-cli export onnx"),
        ("best.engine", "TensorRT", "--device tensorrt builds"),
        ("best.tflite", "TensorFlow Lite", "tf2onnx.convert --tflite best.tflite"),
        ("best.pb", "TensorFlow", "tf2onnx.convert --saved-model"),
    ],
)
def test_other_weights_are_named_with_the_way_to_onnx(name, content, hint, predict, tmp_path):
    (tmp_path / name).write_bytes(b"PK\3\4" + bytes(100))
    completed = predict(f"a.png -m '{name}'", code=4, says=hint)
    assert f"{name} is not ONNX" in completed.stderr
    assert content in completed.stderr


def test_missing_images_are_named_before_a_model_is_fetched(detcli):
    completed = detcli("predict", "none.png", "no*.png", "-", "--model", "yolov10n")
    assert completed.returncode == 4
    first, second = completed.stderr.splitlines()[:2]
    assert first == "detcli: error: none.png: no such file"
    assert "cannot fetch yolov10n" in second


def test_what_is_assumed_is_told_once(detcli, make_model, make_image):
    image = make_image("a.png", ("red", 2, 3))
    size = "an input of 640x640, as no size is named; --imgsz N sets it"
    for model, words, warning in (
        (make_model("a.onnx", size=None), "", size),
        (make_model("b.onnx", size=None), "-q", None),
        (make_model("c.onnx", size=None), "--imgsz 64", None),
        (make_model("d.onnx", size=None), "--preprocess none", None),  # as large as the image
        (make_model("e.onnx", size=None, metadata={"imgsz": "64"}), "", None),
        (make_model("f.onnx"), "", None),
    ):
        completed = detcli("predict", image, "-m", model, words.split())
        assert completed.returncode == 0
        assert completed.stderr.count("assumed: ") == (warning is not None)
        assert (
            warning is None or f"detcli: note: {model.stem}: assumed: {warning}" in completed.stderr
        )
        if not words:
            assumed = json.loads(detcli("inspect", model).stdout)["detector"]["assumed"]
            if warning is None:
                assert assumed == {}
            else:
                (assumption,) = assumed.values()
                assert warning in assumption


def test_a_box_format_against_what_the_nodes_show_is_a_warning(detcli, make_model, make_image):
    model = make_model()
    image = make_image("a.png", ("red", 2, 3))
    for box_format, warned in (("xyxy", 0), ("cxcywh", 1)):
        completed = detcli("predict", image, "-m", model, "--box-format", box_format)
        message = "warning: colours: its nodes show boxes in xyxy, not cxcywh as asked for"
        assert completed.stderr.count(message) == warned


def test_names_file_and_image_size(predict, make_model, make_image, tmp_path):
    (tmp_path / "names.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    make_model(size=None)
    make_image("b.png", ("green", 0, 0))
    completed = predict("b.png --names names.txt --imgsz 64 --classes grün --conf 0.6")
    assert classes(completed) == ["grün"]


@pytest.mark.parametrize("number", thinning.thin("signals", [signal.SIGTERM, signal.SIGINT], 1))
def test_an_interrupt_leaves_complete_output(warm_detcli, number, make_model, make_image, tmp_path):
    """The second input is a pipe that never ends, which leaves time to interrupt."""
    pipe = tmp_path / "pipe.png"
    output = tmp_path / "out.json"
    os.mkfifo(pipe)
    command = [warm_detcli / "detcli", "predict", str(make_image("a.png")), str(pipe)]
    with (
        subprocess.Popen(command + ["-m", str(make_model()), "-o", str(output)]) as process,
        pipe.open("wb"),  # opens when detcli does
    ):
        while not any(part.stat().st_size > 10 for part in tmp_path.glob(".*.part")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert column_of(json.loads(output.read_text()), "index") == [0]
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("each_device")
def test_a_full_disk_is_an_error(make_model, make_image):
    command = [sys.executable, "-m", "detcli", "predict", str(make_image("a.png"))]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        finished = subprocess.run(
            command + ["-m", str(make_model())],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
    assert finished.returncode == 1
    assert "cannot write standard output: No space left on device" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("command", "addresses"),
    [
        ("predict a.jpg --resume", ["s3:"]),
        ("predict a.jpg --save", ["s3:"]),
        ("predict a.jpg --save-txt", ["s3:"]),
        ("predict a.jpg --save-coco", ["-", "s3:"]),
        ("eval codes --data labels.json --save-coco", ["-", "s3:"]),
        ("bench --save-baseline", ["-", "s3:"]),
        ("verify a.jsonl b.jsonl --certificate", ["-", "s3:"]),
    ],
)
def test_what_needs_a_disk_is_written_nowhere_else(invoke, tmp_path, command, addresses):
    words = command.split()
    for address in addresses:
        name = "s3://bucket/name" if address == "s3:" else address
        completed = invoke(words, name, cwd=tmp_path)
        assert completed.returncode == 2
        where = "an object store" if address == "s3:" else ""
        assert f"{words[-1]} cannot write to {where}" in completed.stderr
        assert list(tmp_path.iterdir()) == []


def test_crops_have_a_margin_and_are_squares(predict, tmp_path):
    (record,) = predict("a.png --conf 0.9 --save-crops plain").records
    predict("a.png --conf 0.9 --save-crops wide --crop-margin 5px --crop-square")
    pixels = cv2.imread(str(tmp_path / "a.png"))
    (detection,) = record["detections"]
    left, top = math.floor(detection["x1"]), math.floor(detection["y1"])
    right, bottom = math.ceil(detection["x2"]), math.ceil(detection["y2"])
    plain = cv2.imread(str(tmp_path / "plain/red/a_0.png"))
    np.testing.assert_array_equal(plain, pixels[top:bottom, left:right])
    assert right - left == bottom - top
    wide = cv2.imread(str(tmp_path / "wide/red/a_0.png"))
    np.testing.assert_array_equal(wide, pixels[top - 5 : bottom + 5, left - 5 : right + 5])


@pytest.mark.parametrize("option", ["--crop-margin 10%", "--crop-square"])
def test_the_shape_of_crops_needs_crops(predict, option):
    predict(f"a.png {option}", code=2, says="needs --save-crops")
