"""`detcli inspect` as a user runs it."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import colour_model
import json_lines
import onnx
import pytest
import query_model
from onnx import TensorProto, helper
from report_schemas import validator
from terminals import printed

from detcli.backend.libraries import LeftNode, Placement
from detcli.commands.inspect import render
from detcli.commands.inspect.examine import ModelProblem, examine
from detcli.commands.inspect.network import NetworkPrecision, Operations, Quantisation

WATCHED = """
import json, sys
opened = []
sys.addaudithook(lambda event, details: event == "open" and opened.append(str(details[0])))
from typer.testing import CliRunner
from detcli.cli.app import app
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments)
    watched = [name for name in opened if "pipe-outside" in name]
    print(json.dumps([done.exit_code, done.stdout, done.stderr, watched]))
    opened.clear()
"""


def report(process):
    content = json.loads(process.stdout)
    validator("inspect").validate(content)
    return content


def test_another_kind_of_model_is_reported_with_exit_code_4(invoke, tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        classifier (float[1, 3, 8, 8] images) => (float[1, 192] scores) {
            scores = Flatten(images)
        }
    """)
    path = tmp_path / "classifier.onnx"
    onnx.save_model(model, path)
    table = invoke("inspect", path, "--format", "table")
    written = invoke("inspect", path, "--format", "json")
    for process in (table, written):
        assert process.returncode == 4
        assert "classifier.onnx is not a detector that detcli knows" in process.stderr
        assert "hint: expected images [B, 3, H, W]" in process.stderr
    content = report(written)
    assert content["detector"] is None
    assert content["nodes"] == {"Flatten": 1}
    assert "not a detector" in content["problem"]["message"]
    assert "cannot be used: classifier.onnx is not a detector" in table.stdout
    assert "1 Flatten" in table.stdout


def test_an_unreadable_file_is_exit_code_4_without_a_traceback(invoke, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\x89PNG\r\n\x1a\n")
    process = invoke("inspect", tmp_path / "model.onnx", "-vv")
    assert process.returncode == 4
    assert process.stdout == ""
    assert "not an ONNX model, or is truncated" in process.stderr
    assert "hint: " in invoke("inspect", tmp_path / "model.onnx").stderr


def test_wrong_usage_is_exit_code_2(invoke, make_model, tmp_path):
    (tmp_path / "names").write_text("a\n")
    for arguments in (
        [],
        ["a", "b"],
        ["a", "--format", "xml"],
        ["a", "--device", "x"],
        [make_model(), "--names", tmp_path / "names"],
        [make_model(), "--imgsz", 96],
    ):
        assert invoke("inspect", arguments).returncode == 2, arguments


def poisoned(path, location):
    """A model with one tensor in a file."""
    model = colour_model.build()
    tensor = helper.make_tensor("poison", TensorProto.FLOAT, [2], bytes(8), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_external_data_outside_the_folder_is_never_opened(tmp_path, make_image):
    """Opening the pipe, in Python or in a library, would wait for a writer forever."""
    (tmp_path / "outside").mkdir()
    os.mkfifo(tmp_path / "outside" / "pipe-outside")
    models = {}
    for case, location in {
        "parent": "../outside/pipe-outside",
        "absolute": str(tmp_path / "outside" / "pipe-outside"),
        "link": "pipe-outside",
        "linked folder": "linked/pipe-outside",
        "inside": "pipe-outside",
    }.items():
        (tmp_path / case).mkdir()
        models[case] = poisoned(tmp_path / case / "model.onnx", location)
    (tmp_path / "link" / "pipe-outside").symlink_to("../outside/pipe-outside")
    (tmp_path / "linked folder" / "linked").symlink_to("../outside")
    (tmp_path / "inside" / "pipe-outside").write_bytes(bytes(8))
    runs = [["predict", make_image("a.png"), "--model", models["parent"]]]
    for model in models.values():
        runs.append(["inspect", model])
    command = [sys.executable, "-c", WATCHED, json.dumps(runs, default=str)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60)
    outcomes = json_lines.lines(finished.stdout)
    code, _, _, inside = outcomes.pop()
    for exit_code, stdout, stderr, opened_files in outcomes:
        assert exit_code == 4
        assert stdout == ""
        assert opened_files == []
        assert "the external data of" in stderr
    assert code == 0
    assert str(tmp_path / "inside" / "pipe-outside") in inside


def test_missing_external_data_is_named(detcli, tmp_path):
    model = poisoned(tmp_path / "model.onnx", "weights.bin")
    process = detcli("inspect", model)
    assert process.returncode == 4
    assert "hint: put weights.bin beside the model" in process.stderr
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    process = detcli("inspect", model)  # a pipe gets JSON and nothing else
    assert process.returncode == 0
    assert process.stderr == ""
    assert json_lines.column_of(report(process)["external"], "name") == ["weights.bin"]


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
LEFT = (LeftNode("/odd", "Odd", CPU), LeftNode("/odd2", "Odd", CPU))
PLACEMENTS = (
    Placement(CUDA, usable=True, taken={"Conv": 3}, left=LEFT),
    Placement("OtherExecutionProvider", usable=False, reason="it is broken", hint="mend it"),
    Placement("OldExecutionProvider", usable=True),
    Placement(CPU, usable=True, taken={"Conv": 4}, left=()),
)
SHOWN = """\
m.onnx
file                               2.4 kB
sha256                             ababababababababababababababababababababababababababababababa
                                   bab
written by                         unknown (IR 8)
operator sets                      ai.onnx 17
family                             YOLO
layout                             end-to-end: first_value and second_value (TopK) pick boxes by
                                   the maxima of the class scores (ReduceMax)
head                               head float32 [1, 7, 64]
cut                                at head: the 20 of 41 nodes after it select boxes, which
                                   detcli does itself (4 Unsqueeze, 3 Tile, 3 GatherElements, 2
                                   TopK, 1 Transpose, 1 Split, 6 other operators)
boxes                              xyxy: the decode joins a difference and a sum (Sub, Add): two
                                   corners; in pixels of the input
scores                             final: of each class; every class of an anchor counts
preprocessing                      letterbox,linear,rgb,scale=0.00392156862745098,mean=0:0:0,std
                                   =1:1:1,pad=114
  known from                       the family's rule
anchors                            64
stride                             8, the model's metadata
classes                            3 (numbers, since the model names none): class_0, class_1,
                                   class_2
input                              images float32 [1, 3, 64, 64]
output                             detections float32 [1, 16, 6]
precision                          computes in float16 and float32, weights in int8, quantised
                                   (QDQ): 2 of 4 multiplying nodes
parameters                         0
operations                         at least 6.70 GFLOPs for an input of 1x3x64x64; not counted:
                                   2 Einsum
nodes                              41: 5 Cast, 4 Concat, 4 Unsqueeze, 3 Mul, 3 Add, 3 Tile, 13
                                   other operators
on cuda                            takes 3 of 5 nodes, leaves 2 Odd (cpu), such as /odd
on other                           no: it is broken (mend it)
on old                             takes it; this ONNX Runtime does not report which nodes
on cpu                             takes 4 of 4 nodes
metadata stride                    8
metadata note                      xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
                                   xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (204 more characters)
metadata kkkkkkkkkkkkkkkkkkkkk...  value
cannot be used: it is odd
  fix: make it even
warning: it names none of its 3 classes
  fix: --names FILE, or detcli convert --names FILE to write them into a copy
warning: its own TopK nodes keep at most 16 detections an image; detcli cuts the graph before
them, other programs do not
  fix: for other programs: detcli convert --cut, or --end-to-end with another --max-det
"""


def shown(inspection, width=200):
    return printed(render(inspection), width)


def lines(path, **changed):
    """The printed values by their titles."""
    values = {}
    for row in shown(replace(examine(path), **changed)).splitlines():
        title, _, value = row.partition("  ")
        values[title] = value.strip()
    return values


def test_what_people_see(make_model):
    metadata = {"stride": "8", "note": "x" * 300, "k" * 300: "value"}
    inspection = replace(
        examine(make_model(tail="authors", metadata=metadata)),
        model="m.onnx",
        bytes=2401,
        sha256="ab" * 32,
        placements=PLACEMENTS,
        precision=NetworkPrecision(
            {"float16": 3, "float32": 1}, {"int8": 9}, Quantisation("QDQ", 2, 4)
        ),
        operations=Operations(6_700_000_000, {}, (1, 3, 64, 64), {"Einsum": 2}),
        problem=ModelProblem("it is odd", "make it even"),
    )
    assert shown(inspection, 96) == SHOWN


def test_steps_of_preprocessing_share_the_sentence_that_most_have(make_model):
    inspection = examine(make_model())
    assert inspection.detector is not None
    origins = {**inspection.detector.preprocessing_origins, "values": "nodes at the input"}
    detector = replace(inspection.detector, preprocessing_origins=origins)
    text = shown(replace(inspection, detector=detector))
    assert re.search(r"\n  values +nodes at the input\n  other steps +the family's rule *\n", text)
    assert text.count("the family's rule") == 1


def test_devices_that_cannot_be_used_for_one_reason_share_a_row(make_model):
    placements = []
    for provider in ("FirstExecutionProvider", "SecondExecutionProvider"):
        placement = Placement(provider, usable=False, reason="it is broken", hint="mend it")
        placements.append(placement)
    text = shown(replace(examine(make_model()), placements=tuple(placements)))
    assert re.search(r"\non first, second +no: it is broken \(mend it\)", text)


def test_what_people_see_of_other_detectors(make_model, tmp_path):
    metadata = {"detcli.conf": "0.4,2=0.5", "detcli.tile": "640,crowd=9", "names": str(list("abc"))}
    table = lines(make_model(tail="one-to-many", size=None, batch=None, metadata=metadata))
    expected = {
        "duplicates": "several boxes for each object",
        "NMS": "an IoU of 0.7 is recommended, and used unless --nms is given",
        "confidence": "0.4,c=0.5 is recommended, and used unless --conf is given",
        "tiles": "640,overlap=0.2,crowd=9 is recommended, and used unless --tile is given",
        "anchors": "unknown; depends on the input size",
        "stride": "32, as in all YOLO detectors with three scales; the model gives none",
        "input size": "any; 640x640 unless --imgsz says otherwise",
        "dynamic axis": "axis3: images[3]",  # the last of three
        "precision": "nothing is multiplied",
    }
    assert table == table | expected
    assert "metadata names" not in table
    metadata = {"names": str(list("abc")), "detcli.nms": "0.7"}
    table = lines(make_model(tail="one-to-many", metadata=metadata))
    assert table["classes"] == "3 (the model's metadata): a, b, c"
    assert "an IoU of 0.7 is recommended" in table["NMS"]
    (tmp_path / "q.onnx").write_bytes(query_model.build("deploy").SerializeToString())
    table = lines(tmp_path / "q.onnx", operations=None)
    assert table["head"].endswith("made of corners float32 [1, 64, 4], logits float32 [1, 64, 3]")
    assert "corners and logits" in table["cut"]
    assert table["fed"] == "orig_target_sizes: width and height of the input"
    assert table["operations"] == "not counted: the input size is unknown"


def test_only_so_many_rows_and_characters_are_shown(make_model):
    metadata = {f"key{number}": "x" * 9999 for number in range(500)}
    inspection = examine(make_model(metadata=metadata))
    inspection = replace(inspection, inputs=inspection.inputs * 500)
    text = shown(inspection)
    assert text.count("metadata key") == text.count("images float32") == 20
    assert text.count("480 more") == 2
    assert len(text) < 30_000


def test_a_report_says_how_much_of_huge_metadata_it_leaves_out(make_model, invoke, tmp_path):
    metadata = {"note": "x" * 6_000_000}
    for number in range(1500):
        metadata[f"key{number}"] = "y"
    make_model(metadata=metadata)
    for form, length in (("table", 96), ("json", 1 << 16)):
        process = invoke("inspect", "colours.onnx", "--format", form, cwd=tmp_path)
        assert len(process.stdout) < 200_000
        words = " ".join(process.stdout.split())
        assert f"x... ({6_000_000 - length} more characters)" in words
        assert ("981 more" if form == "table" else "501 more entries") in words


def test_control_codes_and_markup_in_a_file_are_escaped(tmp_path):
    path = tmp_path / "model.onnx"
    evil = "[bold]\x1b[31m\r"
    metadata = {"names": str({0: evil, 1: "b", 2: "c"}), evil: evil}
    model = colour_model.build(metadata=metadata)
    model.producer_name = evil
    path.write_bytes(model.SerializeToString())
    text = shown(examine(path))
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.count("[bold]\\x1b[31m") == 4


def test_an_input_that_follows_the_image_names_no_size_option(detcli, make_model):
    """`--imgsz` would be refused, so the table does not name it."""
    model = make_model(size=None, metadata={"detcli.preprocess": "round,multiple=8", "stride": "8"})
    process = detcli("inspect", model, "--format", "table")
    words = " ".join(process.stdout.split())
    assert "any; it follows each image, its sides multiples of 8" in words
    assert "--imgsz" not in process.stdout + process.stderr


def test_what_the_error_for_a_size_says_can_be_passed(detcli, make_model, make_image):
    """The image is 88x120; with edges of 50 and 70 alone, the network would fail."""
    metadata = {"detcli.preprocess": "round,multiple=8", "stride": "8"}
    model = make_model(size=None, batch=None, metadata=metadata)
    image = make_image("a.png", ("red", 3, 3), size=(88, 120))
    process = detcli("predict", image, "-m", model, "--imgsz", 64)
    assert process.returncode == 2
    assert "--preprocess shortest-edge=MIN:MAX,multiple=8 sets its edges" in process.stderr
    process = detcli("inspect", model, "--preprocess", "shortest-edge=50:70", "--format", "json")
    assert '"preprocessing": "shortest-edge=50:70,' in process.stdout
    assert "multiple=8" in process.stdout
