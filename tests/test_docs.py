"""The documentation is executed: recipes, examples and generated parts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from colour_model import build, picture

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the model and the pictures that the documentation names."""
    names = {0: "person", 1: "bus", 2: "car"}
    model = build(size=None, batch=None, metadata={"names": str(names), "stride": "8"})
    (tmp_path / "yolov10n.onnx").write_bytes(model.SerializeToString())
    pictures = {
        "street.jpg": picture(("red", 2, 3), size=(640, 640)),
        "detcli/pictures/street.jpg": picture(("red", 2, 3), size=(640, 640)),
        "pics/person.jpg": picture(("red", 2, 3), ("blue", 0, 0), size=(640, 640)),
        "pics/car.jpg": picture(("blue", 5, 5), size=(640, 640)),
    }
    for name, image in pictures.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / name), image, [cv2.IMWRITE_JPEG_QUALITY, 100])
    video = cv2.VideoWriter(
        str(tmp_path / "street.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (640, 640)
    )
    for number in range(21):  # a bus in the last second
        video.write(picture(*[("green", 40, 40)] * (number > 10), size=(640, 640)))
    video.release()
    (tmp_path / "pics/torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def shell(script):
    return subprocess.run(
        ["bash", "-c", script],  # noqa: S607 - bash is wherever it is
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


RECIPES = blocks(README.partition("## Recipes")[2].partition("\n## ")[0], "sh")
EXPECTED = [
    lambda done, _: "person" in done.stdout and "car" in done.stdout,
    lambda done, _: done.stdout == "pics/person.jpg\n",
    lambda _, place: len((place / "boxes.csv").read_text().splitlines()) > 4,
    lambda _, place: (
        {json.loads(line)["source"] for line in (place / "boxes.jsonl").read_text().splitlines()}
        == {"pics/person.jpg", "pics/car.jpg", "pics/torn.jpg"}
    ),
    lambda done, place: (
        [float(line) for line in done.stdout.split()] == [number / 10 for number in range(11, 21)]
        and (place / "out/street.mp4").exists()
    ),
    lambda done, _: done.stdout == "somebody was there\n",
    lambda _, place: (
        sorted(path.name for path in (place / "labels").iterdir())
        == ["street_0.txt", "street_10.txt", "street_20.txt"]
    ),
    lambda done, _: done.stdout.startswith('["person",[1'),
    lambda _, place: (
        (place / "broken.txt").read_text() == "pics/torn.jpg\n"
        and sorted(path.name for path in (place / "out").iterdir()) == ["car.jpg", "person.jpg"]
    ),
]


def test_there_are_nine_recipes():
    assert len(RECIPES) == len(EXPECTED) == 9


@pytest.mark.parametrize(("recipe", "shows"), list(zip(RECIPES, EXPECTED, strict=True)))
def test_recipe(recipe, shows, workplace):
    if "jq" in recipe and shutil.which("jq") is None and not os.environ.get("CI"):
        pytest.skip("jq is not installed")
    done = shell(recipe)
    assert "Traceback" not in done.stderr
    assert shows(done, workplace), done


def test_the_first_command(hub, workplace):
    """What installs is not run; tests/test_makefile.py is about `make`."""
    hub.add("yolov10n", workplace.joinpath("yolov10n.onnx").read_bytes())
    _, predict, *_ = blocks(README.partition("## Install and run")[2], "sh")
    done = shell(predict)
    assert done.returncode == 0, done.stderr
    assert '"class_name": "person"' in done.stdout
    assert workplace.joinpath("detcli/pictures/street.jpg").exists()


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
        quick = " --seconds 0.2 --cold-starts 1" if " bench " in command else ""
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


def test_the_page_about_models(hub, workplace):
    model = workplace.joinpath("yolov10n.onnx").read_bytes()
    hub.add("yolov10n", model, half=model)
    hub.add("yolov10s", model)
    scripts = blocks((ROOT / "docs/models.md").read_text(encoding="utf-8"), "sh")
    assert len(scripts) == 3
    for script in scripts:
        done = shell(f"set -e\n{script}")
        assert done.returncode == 0, done.stderr
    assert "yolov10s" in done.stderr  # removed in the end


@pytest.fixture(scope="module")
def generate():
    """The functions of docs/generate.py."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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
    options = re.findall(r"^  (?:-\w, )?--[\w-]+.*(?:\n {4,}.*)*", text, re.MULTILINE)
    assert len(options) > 15
    for option in options:
        assert re.search(r" {2,}[A-Z][^\n]+", option.strip()), option


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_demonstration_picture_is_what_its_script_draws(tmp_path):
    script = ROOT / "docs/images/draw_street.py"
    subprocess.run([sys.executable, script, tmp_path / "street.png"], check=True)
    drawn = cv2.imread(tmp_path / "street.png").astype(int)
    kept = cv2.imread(ROOT / "detcli/pictures/street.jpg").astype(int)
    assert abs(drawn - kept).mean() < 3  # what JPEG loses
