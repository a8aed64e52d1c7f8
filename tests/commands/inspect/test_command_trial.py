"""`detcli inspect --try` and `--data` as a user runs them."""

import json
import os
import shlex
import subprocess
import sys

import onnx
import pytest
import seeker_model
from report_schemas import validator
from seeker_model import IMAGENET, LEVELS, SIDE, SQUARE
from terminals import read_all


@pytest.fixture
def seeker(tmp_path):
    onnx.save_model(seeker_model.build(IMAGENET, bgr=True), tmp_path / "the seeker.onnx")
    return tmp_path / "the seeker.onnx"


@pytest.fixture
def pictures(tmp_path, random):
    seeker_model.write_pictures(tmp_path / "pictures", random)
    return tmp_path / "pictures"


@pytest.fixture
def inspect(invoke):
    """Run it; returns the report's part about the experiment, and the result."""

    def run(model, *arguments):
        done = invoke("inspect", model, "--device", "cpu", *arguments)
        report = json.loads(done.stdout)
        validator("inspect").validate(report)
        return report["trial"], done

    return run


def keeps(table):
    """The arguments of the command that a table says keeps the result."""
    (command,) = (line for line in table.splitlines() if line.startswith("to keep it"))
    return shlex.split(command.partition(": ")[2].strip())[1:]


def test_it_says_what_to_do_and_that_works(invoke, inspect, seeker, pictures, tmp_path):
    trial, done = inspect(seeker, "--try", pictures)
    assert (done.returncode, done.stderr) == (0, "")
    text = "scale=0.00392156862745098,mean=0.406:0.456:0.485,std=0.225:0.224:0.229,bgr"
    assert trial["preprocess"] == text
    assert trial["box_format"] is None
    assert {one["part"]: one["confirms"] for one in trial["parts"]} == {
        "values": False,
        "channels": False,
        "resize": None,
    }
    table = invoke("inspect", seeker, "--device", "cpu", "--try", pictures, "--format", "table")
    assert f"to use it:  --preprocess {text}\n" in table.stdout
    assert "bgr, 100% ahead of rgb; the family's rule says otherwise" in table.stdout
    done = invoke(*keeps(table.stdout), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again, _ = inspect(tmp_path / "the seeker-settled.onnx", "--try", pictures)
    assert again["parts"] == []  # the file says all of it


def test_the_format_of_boxes_is_kept_too(invoke, pictures, tmp_path):
    model = tmp_path / "hidden.onnx"
    onnx.save_model(seeker_model.build(LEVELS, hidden="cxcywh"), model)
    done = invoke(
        *("inspect", model, "--device", "cpu", "--try", pictures, "--format", "table")
    )  # fmt: skip
    assert done.returncode == 4  # as it is, it cannot be used
    assert "its boxes are not decoded in a known way" in done.stderr
    assert "--box-format cxcywh" in done.stdout
    assert invoke(*keeps(done.stdout), cwd=tmp_path).returncode == 0
    done = invoke("inspect", tmp_path / "hidden-settled.onnx")
    assert done.returncode == 0
    detector = json.loads(done.stdout)["detector"]
    assert detector["box_format"] == "cxcywh"
    assert "scale=1," in detector["preprocessing"]


def test_labelled_pictures(inspect, seeker, tmp_path, random):
    folder = tmp_path / "data"
    corners = seeker_model.write_pictures(folder / "images", random)
    (folder / "labels").mkdir()
    for number, (x, y) in enumerate(corners):
        place = ((x + SQUARE / 2) / SIDE, (y + SQUARE / 2) / SIDE, SQUARE / SIDE, SQUARE / SIDE)
        label = f"0 {' '.join(map(str, place))}\n"
        (folder / "labels" / f"{number}.txt").write_text(label)
    trial, done = inspect(seeker, "--data", folder / "images", "--parts", "channels,values")
    assert (done.returncode, done.stderr) == (0, "")
    assert trial["method"] == "mAP"
    assert [one["found"] for one in trial["parts"]] == ["ImageNet's mean and std", "bgr"]


def test_a_file_that_says_all_of_it(invoke, seeker, pictures, tmp_path):
    model = onnx.load(seeker)
    onnx.helper.set_model_props(model, {"detcli.preprocess": "stretch,linear,rgb,scale=1"})
    onnx.save_model(model, tmp_path / "settled.onnx")
    done = invoke("inspect", tmp_path / "settled.onnx", "--try", pictures, "--format", "table")
    assert done.returncode == 0
    assert "nothing to try" in done.stdout


def test_few_pictures_decide_nothing_and_it_says_so(invoke, seeker, pictures):
    done = invoke(
        *("inspect", seeker, "--device", "cpu", "--try", pictures / "0.png"),
        *("--parts", "channels", "--format", "table"),
    )
    assert done.returncode == 0
    assert "fewer than 5 pictures decide nothing" in done.stdout
    assert "to use it" not in done.stdout


def test_of_several_devices_the_first_runs(invoke, seeker, pictures):
    """As a user may have them in DETCLI_DEVICE."""
    given = ("--try", pictures / "0.png", "--parts", "channels", "--device")
    assert invoke("inspect", seeker, *given, "cpu,cuda:7").returncode == 0
    assert invoke("inspect", seeker, *given, "cuda:7,cpu").returncode == 5


def test_unreadable_pictures_are_named_and_the_exit_code_is_3(invoke, inspect, seeker, pictures):
    (pictures / "2.png").write_bytes(b"no picture")
    trial, done = inspect(seeker, "--try", pictures)
    assert done.returncode == 3
    assert "2.png" in done.stderr
    assert len(trial["pictures"]) == 7
    done = invoke("inspect", seeker, "--try", pictures / "2.png", "--device", "cpu")
    assert (done.returncode, done.stdout) == (3, "")
    assert "--try: no picture could be read" in done.stderr
    done = invoke("inspect", seeker, "--try", pictures / "none", "--device", "cpu")
    assert done.returncode == 3
    assert "no such file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--parts", "values"], "--parts needs --try or --data"),
        (["--try", "a", "--parts", "colour"], "'colour' is unknown"),
        (["--try", "a", "--data", "b"], "mutually exclusive"),
        (["--images", "a"], "--images needs --data"),
        (["--try", "a", "--split", "val"], "--split needs --data"),
        (["--data", "none"], "no such file or folder"),
        (["--try", "a", "--device", "gpu"], "unknown device"),
    ],
)
def test_options_that_make_no_sense(invoke, seeker, arguments, says):
    done = invoke("inspect", seeker, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "hint: " in done.stderr


def test_what_is_no_detector_is_reported_as_ever(invoke, pictures, tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        classifier (float[1, 3, 8, 8] images) => (float[1, 192] scores) {
            scores = Flatten(images)
        }
    """)
    onnx.save_model(model, tmp_path / "classifier.onnx")
    done = invoke("inspect", tmp_path / "classifier.onnx", "--try", pictures)
    assert done.returncode == 4
    assert json.loads(done.stdout)["trial"] is None


def test_plain_inspect_loads_nothing_of_it(seeker):
    code = (
        "import sys\nfrom detcli.app import app\n"
        "try: app(['inspect', sys.argv[1]])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, str(seeker)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "detcli.commands.inspect.report" in loaded
    unused = {"trial", "consistency", "labelled"}
    assert not loaded & {f"detcli.commands.inspect.{name}" for name in unused}
    assert not loaded & {
        "hotcoco",
        "detcli.commands.shared.labelled.dataset",
        "detcli.source.sources",
    }


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals")
def test_a_bar_on_a_terminal(warm_detcli, seeker, pictures):
    ours, theirs = os.openpty()
    command = ["inspect", str(seeker), "--try", str(pictures), "--device", "cpu"]
    done = subprocess.run(
        [warm_detcli / "detcli", *command],
        check=True,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = read_all(ours)
    os.close(ours)
    assert b"104/104" in shown  # 13 candidates on 8 pictures
    assert json.loads(done.stdout)["trial"]["parts"]
