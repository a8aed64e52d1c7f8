"""The documentation is executed: recipes, examples and generated parts."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import convolution_model
import cv2
import numpy as np
import pages
import pytest
import rtsp_server
from colour_model import picture
from labelled import Scene, edit_json, write_coco

from detcli import Detector, Settings
from detcli.tiling import Tiling

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path, hub, warm_detcli, monkeypatch):
    """A folder with the pictures that the documentation names; `yolov10n` can be fetched."""
    names = {0: "person", 1: "bus", 2: "car"}
    model = convolution_model.build(
        "ultralytics", size=640, keep=300, metadata={"names": str(names)}
    )
    content = model.SerializeToString()
    hub.add("yolov10n", content, half=content)
    hub.add("yolov10s", content)
    paint = functools.partial(picture, size=(640, 640), grey=40)
    pictures = {
        "street.jpg": paint(("red", 2, 3)),
        "detcli/pictures/street.jpg": paint(("red", 2, 3)),
        "pics/person.jpg": paint(("red", 2, 3), ("blue", 0, 0), ("green", 7, 7)),
        "pics/car.jpg": paint(("blue", 5, 5)),
    }
    for name, image in pictures.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / name), image, [cv2.IMWRITE_JPEG_QUALITY, 100])
    video = cv2.VideoWriter(
        str(tmp_path / "street.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (640, 640)
    )
    for number in range(21):  # a bus in the last second
        video.write(paint(*[("green", 40, 40)] * (number > 10)))
    video.release()
    (tmp_path / "pics/torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / ".cache/huggingface"))  # as in a home folder
    path = [warm_detcli, Path(sys.executable).parent, os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, path)))
    return tmp_path


def shell(script):
    """Run a script in bash, as another program would: without a terminal."""
    return run(["bash", "-c", script])


ON_TERMINAL = [
    *(sys.executable, "-c"),
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
    *("bash", "-c"),
]


def in_terminal(script):
    """Run a script in bash on a terminal of its own, as somebody would type it."""
    done = run([*ON_TERMINAL, script])
    done.stdout = plain(done.stdout)
    return done


def until_ctrl_c(script, sign):
    """What a script says on a terminal of its own; Ctrl-C is pressed when the sign appears."""
    with subprocess.Popen(
        [*ON_TERMINAL, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        said = b""
        while not re.search(sign, plain(said.decode(errors="ignore"))):
            more = process.stdout.read1()
            assert more, said
            said += more
        process.stdin.write(b"\x03")
        process.stdin.flush()
        return plain((said + process.stdout.read()).decode())


def plain(text):
    """What a terminal was sent, without its control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")


def from_cron(script):
    """Run a script as cron does: in sh, at home, with hardly any variables."""
    first, *_ = os.environ["PATH"].split(os.pathsep)
    path = f"{first}:/usr/bin:/bin"  # as the text before the recipe says
    variables = {"HOME": str(Path.cwd()), "LOGNAME": "you", "SHELL": "/bin/sh", "PATH": path}
    variables["DETCLI_DEVICE"] = "cpu"  # `auto` without the extras, as on the page
    return run(["/bin/sh", "-c", script], env=variables)


def run(command, **options):
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def skip_without_jq(script):
    if "jq" in script and shutil.which("jq") is None and not os.environ.get("CI"):
        pytest.skip("jq is not installed")


RECIPES = blocks(README.partition("## Recipes")[2].partition("\n## ")[0], "sh")
EXPECTED = [
    lambda done, _: {*re.findall(r"\d+ (\w+)", done.stdout)} == {"person", "bus", "car"},
    lambda done, _: done.stdout == "pics/person.jpg\n",
    lambda _, place: len((place / "boxes.csv").read_text().splitlines()) > 4,
    lambda _, place: (
        {json.loads(line)["source"] for line in (place / "boxes.jsonl").read_text().splitlines()}
        == {"pics/person.jpg", "pics/car.jpg", "pics/torn.jpg"}
    ),
    lambda _, place: (
        [json.loads(line)["source"] for line in (place / "all.jsonl").read_text().splitlines()]
        == ["pics/car.jpg", "pics/person.jpg", "pics/torn.jpg"]
    ),
    lambda done, place: (
        [float(line) for line in done.stdout.split()] == [number / 10 for number in range(11, 21)]
        and (place / "out/street.mp4").exists()
    ),
    None,  # from cron, see below
    lambda done, place: (
        done.stdout == ""
        and sorted(path.name for path in (place / "dataset/images").iterdir())
        == ["street_0.jpg", "street_10.jpg", "street_20.jpg"]
    ),
    lambda done, _: '["person",[1' in done.stdout,
    lambda _, place: (
        (place / "broken.txt").read_text() == "pics/torn.jpg\n"
        and sorted(path.name for path in (place / "out").glob("[!.]*")) == ["car.jpg", "person.jpg"]
    ),
    lambda _, place: len((place / "boxes.csv").read_text().splitlines()) > 4,
    lambda _, place: (
        [Path(entry["source"]).name for entry in pages.entries(place / "page")]
        == ["car.jpg", "person.jpg", "torn.jpg"]
    ),
    lambda _, place: [path.name for path in (place / "out").glob("[!.]*")] == ["person.jpg"],
]


def test_there_are_thirteen_recipes():
    assert len(RECIPES) == len(EXPECTED) == 13


@pytest.mark.parametrize(
    ("recipe", "shows"),
    [pair for pair in zip(RECIPES, EXPECTED, strict=True) if pair[1] is not None],
)
def test_recipe(recipe, shows, workplace):
    skip_without_jq(recipe)
    done = in_terminal(recipe)
    assert "Traceback" not in done.stdout
    assert shows(done, workplace), done


CRON = RECIPES[EXPECTED.index(None)]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("true", "somebody was there"),
        ("rm pics/person.jpg pics/torn.jpg", ""),
        ("rm pics/person.jpg", "detcli failed, see above"),  # a torn picture
        ("rm -r pics", "detcli failed, see above"),
        ("rm -r .cache", "detcli failed, see above"),  # no model, and no network
    ],
)
def test_the_recipe_for_cron(setting, says, workplace):
    assert workplace == Path.cwd()
    assert shell(f"detcli models pull yolov10n && {setting}").returncode == 0
    assert from_cron(f"HF_HUB_OFFLINE=1; export HF_HUB_OFFLINE\n{CRON}").stdout.strip() == says


def test_in_cron_without_a_path_detcli_fails_too(workplace):
    assert workplace == Path.cwd()
    done = from_cron(f"PATH=/usr/bin:/bin\n{CRON}")
    assert done.stdout == "detcli failed, see above\n"
    assert "not found" in done.stderr


def test_the_recipe_for_a_pipe_of_pictures(workplace):
    """With a program in place of ffmpeg that writes two JPEGs."""
    (command,) = (line for line in blocks(README, "sh") for line in line.splitlines()
                  if line.startswith("ffmpeg "))  # fmt: skip
    (workplace / "bin").mkdir()
    (workplace / "bin/ffmpeg").write_text(f"#!/bin/sh\ncat {workplace}/street.jpg pics/car.jpg\n")
    (workplace / "bin/ffmpeg").chmod(0o755)
    done = shell(f"PATH={workplace}/bin:$PATH\n{command}")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["frame"] for line in done.stdout.splitlines()] == [0, 1]


CAMERA, STREAM, STREAMS, _ = blocks(README.partition("## Cameras and streams")[2], "sh")[
    0
].splitlines()


@pytest.fixture
def camera():
    """Host and port of a camera on this machine, which sees a person in the dark."""
    image = np.zeros((640, 640, 3), np.uint8)
    image[24:32, 16:24] = 0, 0, 255
    with rtsp_server.serve(image) as host:
        yield host


@pytest.mark.usefixtures("workplace")
def test_the_recipe_for_a_stream(camera):
    """With an address on this machine in place of the camera's."""
    skip_without_jq(STREAM)
    assert f"rtsp://{rtsp_server.USER}@192.168.1.20/" in STREAM
    recipe = STREAM.replace("192.168.1.20", camera)
    row = r"\[[\d.]+,1\]\n"
    said = until_ctrl_c(recipe, f"({row}){{3}}")
    # With nothing between the rows.
    assert re.search(
        rf"({row}){{3,}}(\^C)?\n?(detcli: found .*\n)?(\^C)?detcli: \d+ frames", said
    ), said
    assert "password" not in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("workplace")
def test_the_recipe_for_streams(camera):
    """With the same camera on this machine in place of two."""
    said = until_ctrl_c(
        re.sub(r"192\.168\.1\.\d+", camera, STREAMS),
        rf"(?s)(?=.*rtsp://{camera}/yard .*person)(?=.*rtsp://{camera}/gate .*person)",
    )
    for name in ("yard", "gate"):
        assert re.search(rf"detcli: rtsp://{camera}/{name}: \d+ frames?", said), said
    assert "password" not in said
    assert "Traceback" not in said


def test_the_recipe_for_a_camera(camera, workplace):
    """With a stream in place of the camera, and without its window: no machine of CI has them."""
    double = workplace / "bin/detcli"
    double.parent.mkdir()
    double.write_text(
        f"#!{sys.executable}\n"
        "from detcli.__main__ import main\n"
        "from detcli.sink import window\n"
        "from detcli.source import live\n"
        "opened = []\n"
        "def open_camera(number):\n"
        "    opened.append(number)\n"
        f"    return live.open_address('rtsp://{rtsp_server.USER}@{camera}/')\n"
        "class Window:\n"
        "    def __init__(self, *_): self.shown = 0\n"
        "    def write(self, record): self.shown += record.picture.pixels.shape == (640, 640, 3)\n"
        "    def close(self): print('camera', *opened, 'is shown:', self.shown > 2)\n"
        "live.open_camera, window.WindowSink = open_camera, Window\n"
        "main()\n"
    )
    double.chmod(0o755)
    said = until_ctrl_c(f"PATH={double.parent}:$PATH\n{CAMERA}", r"(?s)(person .*){3}")
    assert "camera 0 is shown: True" in said
    assert "Traceback" not in said


def test_models_in_commands_come_from_somewhere():
    """A file of a model that a command reads is made by one before, or said to stand for others."""
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        text = page.read_text(encoding="utf-8")
        made = {name for line in text.splitlines() if "stand" in line
                for name in re.findall(r"`([\w-]+\.onnx)`", line)}  # fmt: skip
        for line in "".join(blocks(text, "sh") + blocks(text, "console")).splitlines():
            if re.match(r"(\$ )?(detcli|python|yolo|hyperfine) ", line):
                made |= {*re.findall(r"(?:-o |makes )([\w-]+\.onnx)", line)}
                assert {*re.findall(r"[\w-]+\.onnx", line)} <= made, f"{page.name}: {line}"


def test_the_first_command(workplace):
    """What installs is not run; tests/test_makefile.py is about `make`."""
    _, predict, *_ = blocks(README.partition("## Install and run")[2], "sh")
    done = shell(predict)
    assert done.returncode == 0, done.stderr
    assert '"class_name": "person"' in done.stdout
    assert workplace.joinpath("detcli/pictures/street.jpg").exists()


@pytest.mark.parametrize(("page", "count"), [("convert", 5), ("verify", 5), ("scale-out", 3)])
def test_the_commands_of_a_page(page, count, workplace):
    (workplace / "pics/torn.jpg").unlink()
    script, *_ = blocks((ROOT / f"docs/{page}.md").read_text(encoding="utf-8"), "sh")
    assert len(script.splitlines()) == count
    done = shell(f"set -e\n{script}")
    assert done.returncode == 0, done.stderr


def test_the_page_compares_saved_runs(workplace):
    (workplace / "pics/torn.jpg").unlink()
    shutil.copytree("pics", "photos")
    text = (ROOT / "docs/verify.md").read_text(encoding="utf-8")
    (script,) = blocks(text.partition("## Saved runs")[2].partition("\n## ")[0], "sh")
    done = shell(f"set -e\n{script}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["compared"] == 2
    done = shell("detcli convert yolov10n -o half.onnx --half -q")
    assert done.returncode == 0, done.stderr
    certify, _ = blocks(text.partition("## Certificates")[2].partition("\n## ")[0], "sh")
    done = shell(f"set -e\n{certify}")
    assert done.returncode == 0, done.stderr
    assert all((workplace / name).exists() for name in ("gpu.html", "half.json"))


def test_the_tasks_of_a_cluster(workplace):
    """The first command of each job file, with the variables that its scheduler sets."""
    (workplace / "pics/torn.jpg").unlink()
    shutil.copytree("pics", "data/pics")
    text = (ROOT / "docs/scale-out.md").read_text(encoding="utf-8")
    (slurm,) = blocks(text, "bash")
    (kubernetes,) = re.findall(r"args: \['(.+)'\]", text)
    for variables, script, boxes in (
        ("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=8", slurm, "boxes/"),
        ("JOB_COMPLETION_INDEX=0", kubernetes.replace("/data/", "data/"), "data/boxes/"),
    ):
        done = shell(f"export {variables}\n{script}")
        assert done.returncode == 0, done.stderr
        done = shell(f"detcli merge {boxes}")
        assert len(done.stdout.splitlines()) == 2, done.stderr


def test_the_commands_about_evaluation(workplace):
    """The data that the page names is what `predict` made of the pictures."""
    (workplace / "pics/torn.jpg").unlink()
    install, *commands = blocks((ROOT / "docs/evaluation.md").read_text(encoding="utf-8"), "sh")[
        0
    ].splitlines()
    assert install.startswith("pip install ")
    done = shell("detcli predict pics --conf 0.6 -q --save-dataset data && mv data/* .")
    assert done.returncode == 0, done.stderr
    (workplace / "data.yaml").write_text((workplace / "data.yaml").read_text() + "test: images\n")
    write_coco(workplace / "coco", [Scene.found(("red", 2, 3, 1.0))])
    edit_json(
        workplace / "coco/instances.json",
        lambda content: content.update(categories=[{"id": 11, "name": "person"}]),
    )
    (workplace / "coco/images").rename(workplace / "coco/val2017")
    skip_without_jq(commands[-1])
    outputs = [shell(f"set -o pipefail; {command}") for command in commands]
    assert [done.returncode for done in outputs] == [0, 0, 0], outputs
    assert outputs[-1].stdout == "1\n"
    assert [*(workplace / "plots").iterdir()]


@pytest.mark.usefixtures("workplace")  # `detcli` is found
def test_the_demonstration():
    """Classes and places as printed; scores to what processors compute differently."""
    (transcript,) = blocks(README, "console")
    command, *printed = transcript.removeprefix("$ ").splitlines()
    done = shell(f"cd {ROOT} && {command.partition(' --save')[0]} --device cpu --format table")
    rows, expected = (
        [line.rsplit(maxsplit=5) for line in lines if not line.startswith("class")]
        for lines in (done.stdout.splitlines(), printed)
    )
    assert [row[0] for row in rows] == [row[0] for row in expected]
    for row, wanted in zip(rows[1:], expected[1:], strict=True):
        assert [float(cell) for cell in row[2:]] == pytest.approx(
            [float(cell) for cell in wanted[2:]], abs=1
        )
        assert float(row[1]) == pytest.approx(float(wanted[1]), abs=0.02)


TOOLS = next(b for b in blocks(README, "sh") if "detcli inspect" in b).splitlines()


def test_the_tools_of_trust(workplace):
    (workplace / "pics/torn.jpg").unlink()
    reports = {}
    for command in TOOLS:
        quick = " street.jpg --seconds 0.2 --cold-starts 1" if " bench" in command else ""
        done = shell(command + quick)
        assert done.returncode == 0, done.stderr
        reports[command.split()[1]] = json.loads(done.stdout)
    assert reports["inspect"]["detector"]["box_format"] == "xyxy"
    assert (workplace / "yolov10n-half.onnx").exists()
    assert reports["verify"]["agree"] is True
    assert reports["bench"]["latency"]["stages"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
@pytest.mark.usefixtures("workplace")
def test_python_examples(page):
    code = "\n".join(blocks((ROOT / page).read_text(encoding="utf-8"), "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "person" in done.stdout


@pytest.mark.usefixtures("workplace")
def test_the_page_about_models():
    scripts = blocks((ROOT / "docs/models.md").read_text(encoding="utf-8"), "sh")
    assert len(scripts) == 3
    for script in scripts:
        done = shell(f"set -e\n{script}")
        assert done.returncode == 0, done.stderr
    assert "yolov10s" in done.stderr  # removed in the end


PAGE = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
PICTURES = {
    "hidden/demo.jpg": "codes-hidden.jpg",
    "found/sheet.jpg": "codes-tiles.jpg",
    "texts/demo.jpg": "codes-texts.jpg",
    "zones/demo.jpg": "codes-zones.jpg",
}
"""What the recipes write, and its copy on the page, which may be smaller."""

TRACKS, TRACKS_FRAME = ROOT / "docs/images/codes-tracks.jpg", 41
"""A frame of the video that the recipes write, and its number from 1."""


def test_the_page_of_recipes_shows_what_its_commands_write(workplace):
    pytest.importorskip("trackers")
    for folder in ("models/codes", "docs/images"):
        (workplace / folder).mkdir(parents=True)
    for name in ("models/codes/demo.jpg", "detcli/pictures/street.jpg", "docs/images/draw_belt.py"):
        shutil.copy(ROOT / name, name)
    demo = cv2.imread(str(ROOT / "models/codes/demo.jpg"))
    half = cv2.resize(demo, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    cv2.imwrite("sheet.jpg", np.tile(half, (3, 3, 1)))
    texts = ""
    for script in blocks(PAGE, "sh"):
        done = shell(f"set -e\n{script}")
        assert done.returncode == 0, done.stderr
        texts = done.stdout if "--read" in script else texts
    (table,) = blocks(PAGE, "text")
    assert table.split() == texts.split()
    for written, kept in PICTURES.items():
        assert f"(images/{kept})" in PAGE
        ours, theirs = (cv2.imread(str(path)) for path in (written, ROOT / "docs/images" / kept))
        ours = cv2.resize(ours, theirs.shape[1::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(ours.astype(int) - theirs).mean() < 5  # labels may differ
    video, theirs = cv2.VideoCapture("tracked/belt.mp4"), cv2.imread(str(TRACKS))
    for _ in range(TRACKS_FRAME):
        _, ours = video.read()
    assert np.abs(ours.astype(int) - theirs).mean() < 8


def test_the_page_counts_what_tiles_find():
    """Against what the model finds in the picture at its own size."""
    demo = cv2.imread(str(ROOT / "models/codes/demo.jpg"))
    half = cv2.resize(demo, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    sheet = np.tile(half, (3, 3, 1))
    with Detector("codes", "cpu") as detector:
        found = detector(demo)
    known = Counter(found[found.score > 0.6].class_name)
    counts = []
    for tile in (None, Tiling(640)):
        with Detector("codes", "cpu", Settings(tile=tile)) as detector:
            per_class = Counter(detector(sheet).class_name)
            counts.append(sum(min(per_class[name], 9 * count) for name, count in known.items()))
    assert counts[1] == 9 * known.total() == 63
    assert counts[0] <= 45
    assert "all of the 63 symbols are found; without, 36" in PAGE


OTHER = PAGE.partition("## In other programs")[2]


@pytest.fixture
def results(workplace):
    """A folder with what the page writes for other programs."""
    done = shell(f"set -e\n{blocks(OTHER, 'sh')[0]}")
    assert done.returncode == 0, done.stderr
    (workplace / "coco").mkdir()
    images = [{"id": number, "width": 640, "height": 640} for number in (1, 2)]
    person = {"id": 1, "image_id": 2, "category_id": 0, "iscrowd": 0, "area": 64}
    truth = {
        "images": images,
        "categories": [{"id": number, "name": str(number)} for number in range(3)],
        "annotations": [person | {"bbox": [16, 24, 8, 8]}],
    }
    (workplace / "coco/instances.json").write_text(json.dumps(truth))
    return workplace


@pytest.mark.usefixtures("results")
def test_other_programs_read_what_is_written():
    """DuckDB, pandas, supervision and hotcoco, in one process."""
    done = run([sys.executable, "-c", "print('---')\n".join(blocks(OTHER, "python"))])
    assert done.returncode == 0, done.stderr
    by_duckdb, by_pandas, _, by_hotcoco = done.stdout.split("---\n")
    assert "person" in by_duckdb
    assert "person" in by_pandas
    assert "Average Precision" in by_hotcoco
    assert np.any(cv2.imread("annotated.jpg") != cv2.imread("street.jpg"))


def test_label_studio_takes_the_tasks(results, monkeypatch):
    readers = ROOT / ".readers"  # of `make readers`
    if not readers.exists() and not os.environ.get("CI"):
        pytest.skip("make readers was not run")
    monkeypatch.syspath_prepend(readers)
    from label_studio_sdk.label_interface import LabelInterface

    tags = "".join(f'<Label value="{name}"/>' for name in ("person", "bus", "car"))
    interface = LabelInterface(
        '<View><Image name="image" value="$image"/>'
        f'<RectangleLabels name="label" toName="image">{tags}</RectangleLabels></View>'
    )
    tasks = json.loads((results / "tasks.json").read_text())
    assert [task["data"]["image"] for task in tasks] == ["pics/car.jpg", "pics/person.jpg"]
    predictions = [one for task in tasks for one in task["predictions"]]
    for one in predictions:
        assert interface.validate_prediction(one, return_errors=True) == []
    values = [region["value"] for one in predictions for region in one["result"]]
    assert ["person"] in [value["rectanglelabels"] for value in values]
    assert (2.5, 1.25) in [(value["x"], value["width"]) for value in values]  # 16 to 24 of 640


def test_supervision_reads_the_dataset(results):
    import supervision

    found = supervision.DetectionDataset.from_yolo(
        *(str(results / name) for name in ("dataset/images", "dataset/labels", "dataset/data.yaml"))
    )
    boxes = [(found.classes[row[3]], *row[0]) for _, _, rows in found for row in rows]
    assert ("person", 16, 24, 24, 32) in boxes


@pytest.fixture
def generate(detcli):
    """The functions of docs/generate.py, which run `detcli` in forks."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    width = os.environ | {"COLUMNS": "100"}
    module.detcli = lambda *arguments: detcli(*arguments, env=width).stdout
    return module


def test_the_command_reference_is_the_programs_help(generate):
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == generate.cli(), "run make docs"


def test_the_schema_on_the_page_is_the_programs(generate):
    text = (ROOT / "docs/output.md").read_text(encoding="utf-8")
    assert generate.output(text) == text, "run make docs"
    assert "urn:detcli:predict" in text


def test_schemas_follow_from_the_reports(generate):
    folders = (ROOT / "detcli/commands").glob("*/schema.json")
    assert {path.parent.name for path in folders} == {*generate.REPORTS}
    for command in generate.REPORTS:
        kept = (ROOT / "detcli/commands" / command / "schema.json").read_text(encoding="utf-8")
        assert kept == generate.schema(command), f"{command}: run make docs"


def test_every_option_is_explained():
    """Click prints an option without help as a line that ends after its type."""
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    options = re.findall(r"^  (?:-\w, )?--(?!no-FLAG)\S+.*(?:\n {4,}.*)*", text, re.MULTILINE)
    assert len(options) > 15
    for option in options:
        assert re.search(r" {2,}[A-Z][^\n]+", option.strip()), option


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_promise_names_tests_that_exist():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = page.partition("| --- |")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(rows) > 20
    for row in rows:
        tests = re.findall(r"`(tests/[^`:]+\.py)(?:::([^`]+))?`", row)
        assert tests, row
        for path, name in tests:
            assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), (path, name)


def test_the_demonstration_picture_is_what_its_script_draws(tmp_path):
    script = ROOT / "docs/images/draw_street.py"
    subprocess.run([sys.executable, script, tmp_path / "street.png"], check=True)
    drawn = cv2.imread(tmp_path / "street.png").astype(int)
    kept = cv2.imread(ROOT / "detcli/pictures/street.jpg").astype(int)
    assert abs(drawn - kept).mean() < 3  # what JPEG loses


def test_object_stores_are_read_and_written(workplace, s3):
    for path in (workplace / "pics").iterdir():
        s3.put(f"pics/{path.name}", path.read_bytes(), bucket="bucket")
    text = (ROOT / "docs/inputs.md").read_text(encoding="utf-8")
    (script,) = blocks(text.partition("## Object stores")[2].partition("\n## ")[0], "sh")
    done = shell(script)
    assert done.returncode == 0, done.stderr
    local = shell("detcli predict pics -o local.jsonl")
    assert local.returncode == 3  # of the torn picture
    records = (workplace / "boxes.jsonl").read_text()
    assert records.replace("s3://bucket/", "") == (workplace / "local.jsonl").read_text()
    assert json.loads((workplace / "car.jsonl").read_text())["source"] == "s3://bucket/pics/car.jpg"
    assert s3.get("boxes.csv", bucket="bucket").startswith(b"source,")
