"""The README and the page of recipes for the shell are executed."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pages
import pytest
import rtsp_server
from documentation.shells import (
    README,
    ROOT,
    blocks,
    from_cron,
    in_terminal,
    page,
    section,
    shell,
    skip_without_jq,
    titled_blocks,
    until_ctrl_c,
    works,
)
from folders import visible_names
from json_lines import column_of, lines
from thinning import thin

pytestmark = pytest.mark.slow

SHELL = page("shell")
RECIPES = titled_blocks(section(SHELL, "Recipes"), "sh")
"""The recipes, by the paragraph before each."""

EXPECTATIONS = {}
"""What shows that a recipe works, by how its paragraph begins."""


def recipe(title):
    """The script of the recipe whose paragraph begins so."""
    scripts = []
    for paragraph, script in RECIPES.items():
        if paragraph.startswith(title):
            scripts.append(script)
    (script,) = scripts
    return script


def expects(title):
    """Mark a function that checks what a recipe did, from its process and its folder."""

    def mark(check):
        EXPECTATIONS[title] = check
        return check

    return mark


def sources(file):
    return column_of(lines(file.read_text()), "source")


def results(process):
    """The lines on a terminal that are results, and not what detcli says on standard error."""
    return [line for line in process.stdout.splitlines() if not line.startswith("detcli: ")]


TORN = ["pics/car.jpg", "pics/person.jpg", "pics/torn.jpg"]


@expects("What is in a folder of images?")
def shows_the_classes(process, _):
    for class_name in ("person", "bus", "car"):
        assert re.search(rf"\d+ {class_name}\b", process.stdout)


@expects("Which images show a person?")
def shows_the_image_with_a_person(process, _):
    assert "pics/torn.jpg: a damaged JPEG" in process.stdout  # standard error, on a terminal
    assert results(process) == ["pics/person.jpg"]


@expects("All boxes as a spreadsheet")
@expects("Small objects in large images")
def writes_rows(_, folder):
    assert len((folder / "boxes.csv").read_text().splitlines()) > 4


@expects("A million images, overnight")
def writes_a_journal_of_all(_, folder):
    assert sorted(sources(folder / "boxes.jsonl")) == TORN


@expects("The same in shards")
def merges_all(_, folder):
    assert sources(folder / "all.jsonl") == TORN


@expects("An annotated video, with its sound")
def writes_a_video_and_says_when_a_bus_is_there(process, folder):
    times_s = [float(line) for line in results(process)]
    assert times_s == [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]
    assert (folder / "out/street.mp4").exists()


@expects("A dataset to train on")
def writes_an_image_each_second(process, folder):
    assert process.stdout == ""
    images = visible_names(folder / "dataset/images")
    assert images == ["street_0.jpg", "street_10.jpg", "street_20.jpg"]


@expects("An image from another program")
def shows_the_best_box(process, _):
    assert '["person",1' in process.stdout


@expects("Annotated copies in `out`")
def names_what_cannot_be_read(_, folder):
    assert (folder / "broken.txt").read_text() == "pics/torn.jpg\n"
    assert visible_names(folder / "out") == ["car.jpg", "person.jpg"]


@expects("Only the lower half")
def writes_annotated_copies(_, folder):
    assert visible_names(folder / "out") == ["car.jpg", "person.jpg"]


@expects("An HTML report")
def writes_a_page_of_all(_, folder):
    assert column_of(pages.entries(folder / "page"), "source") == TORN


@expects("Images in which the people")
def writes_the_person_blurred(process, folder):
    assert visible_names(folder / "blurred") == ["person.jpg"]
    assert "may show" not in process.stderr


CRON = "From cron: was anybody in the image?"


def test_each_recipe_has_an_expectation():
    assert len(RECIPES) == len(EXPECTATIONS) + 1
    assert {recipe(title) for title in list(EXPECTATIONS) + [CRON]} == set(RECIPES.values())


@pytest.mark.parametrize("title", thin("recipes of README", EXPECTATIONS, count=5))
def test_recipe(title, workplace):
    skip_without_jq(recipe(title))
    process = in_terminal(recipe(title))
    assert "Traceback" not in process.stdout
    EXPECTATIONS[title](process, workplace)


CRON_ENDINGS = [
    ("true", "somebody was there"),
    ("rm pics/person.jpg pics/torn.jpg", ""),
    ("rm pics/person.jpg", "detcli failed, see above"),  # a torn image
    ("rm -r pics", "detcli failed, see above"),
    ("rm -r .cache", "detcli failed, see above"),  # no model, and no network
]


@pytest.mark.parametrize(
    ("setting", "says"), thin("ways in which the recipe for cron ends", CRON_ENDINGS, count=3)
)
def test_the_recipe_for_cron(setting, says, workplace):
    assert workplace == Path.cwd()
    assert shell(f"detcli models pull yolov10n && {setting}").returncode == 0
    assert (
        from_cron(f"HF_HUB_OFFLINE=1; export HF_HUB_OFFLINE\n{recipe(CRON)}").stdout.strip() == says
    )


def test_in_cron_without_a_path_detcli_fails_too(workplace):
    assert workplace == Path.cwd()
    process = from_cron(f"PATH=/usr/bin:/bin\n{recipe(CRON)}")
    assert process.stdout == "detcli failed, see above\n"
    assert "not found" in process.stderr


def test_the_recipe_for_a_pipe_of_images(workplace):
    """With a program in place of ffmpeg that writes two JPEGs."""
    commands = []
    for script in blocks(SHELL, "sh"):
        for line in script.splitlines():
            if line.startswith("ffmpeg "):
                commands.append(line)
    (command,) = commands
    (workplace / "bin").mkdir()
    (workplace / "bin/ffmpeg").write_text(f"#!/bin/sh\ncat {workplace}/street.jpg pics/car.jpg\n")
    (workplace / "bin/ffmpeg").chmod(0o755)
    process = works(f"PATH={workplace}/bin:$PATH\n{command}")
    assert column_of(lines(process.stdout), "frame") == [0, 1]


CAMERA, STREAM, STREAMS, _ = blocks(section(SHELL, "Cameras and streams"), "sh")[0].splitlines()


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
    output = until_ctrl_c(recipe, f"({row}){{3}}")
    # With nothing between the rows but what the terminal echoes.
    assert re.search(
        rf"({row}){{3,}}(\^C)?({row})*\n?(detcli: found .*\n)?(\^C)?detcli: \d+ frames", output
    ), output
    assert "password" not in output
    assert "Traceback" not in output


@pytest.mark.usefixtures("workplace")
def test_the_recipe_for_streams(camera):
    """With the same camera on this machine in place of two."""
    output = until_ctrl_c(
        re.sub(r"192\.168\.1\.\d+", camera, STREAMS),
        rf"(?s)(?=.*rtsp://{camera}/yard .*person)(?=.*rtsp://{camera}/gate .*person)",
    )
    for name in ("yard", "gate"):
        assert re.search(rf"detcli: rtsp://{camera}/{name}: \d+ frames?", output), output
    assert "password" not in output
    assert "Traceback" not in output


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
    output = until_ctrl_c(f"PATH={double.parent}:$PATH\n{CAMERA}", r"(?s)(person .*){3}")
    assert "camera 0 is shown: True" in output
    assert "Traceback" not in output


def test_models_in_commands_come_from_somewhere():
    """A file of a model that a command reads is made by one before, or said to stand for others."""
    for path in [ROOT / "README.md"] + list(ROOT.glob("docs/*.md")):
        text = path.read_text(encoding="utf-8")
        explained = set()
        for line in text.splitlines():
            if "stand" in line:
                explained |= set(re.findall(r"`([\w-]+\.onnx)`", line))
        for line in "".join(blocks(text, "sh") + blocks(text, "console")).splitlines():
            if re.match(r"(\$ )?(detcli|python|yolo|hyperfine) ", line):
                explained |= set(re.findall(r"(?:-o |makes )([\w-]+\.onnx)", line))
                assert set(re.findall(r"[\w-]+\.onnx", line)) <= explained, f"{path.name}: {line}"


def test_the_first_commands(workplace):
    """What installs is not run; tests/test_makefile.py is about `make`."""
    _install, fetched = blocks(section(README, "Install and run"), "sh")
    assert '"class_name": "person"' in works(fetched).stdout
    assert workplace.joinpath("detcli/pictures/street.jpg").exists()


def test_the_commands_for_your_own_model(workplace):
    (script,) = blocks(section(README, "Your own model"), "sh")
    workplace.joinpath("pics/torn.jpg").unlink()
    process = works(f'cp "$(detcli models path yolov10n)" mine.onnx\n{script}')
    assert '"class_name": "person"' in process.stdout
    assert visible_names(workplace / "out") == ["car.jpg", "person.jpg"]


def test_the_recipes_of_readme_are_on_the_page_that_is_executed():
    (script,) = blocks(section(README, "Recipes"), "sh")
    commands = [line for line in script.splitlines() if not line.startswith("#")]
    assert len(commands) == 7
    executed = "\n".join(RECIPES.values()).splitlines()
    for command in commands:
        assert command in executed


def rows_of(table):
    """The cells of each line of a table but its header."""
    return [line.split() for line in table if not line.startswith("class")]


@pytest.mark.usefixtures("workplace")  # `detcli` is found
def test_the_demonstration():
    """Classes and places as printed; scores to what processors compute differently."""
    (transcript,) = blocks(README, "console")
    printed = transcript.removeprefix("$ ").splitlines()
    command, _, _ = printed[0].partition(" --save")
    process = shell(f"cd {ROOT} && {command} --device cpu --format table")
    rows = rows_of(process.stdout.splitlines())
    expected_rows = rows_of(printed[1:])
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row[0] == expected_row[0]
        assert row[6:] == expected_row[6:]
    for row, expected_row in zip(rows[1:], expected_rows[1:], strict=True):
        edges = np.array(row[2:6], float)
        expected_edges = np.array(expected_row[2:6], float)
        assert edges == pytest.approx(expected_edges, abs=1)
        assert float(row[1]) == pytest.approx(float(expected_row[1]), abs=0.02)


TOOLS = blocks(section(README, "Trust the answer"), "sh")[0].splitlines()


def test_the_tools_of_trust(workplace):
    (workplace / "pics/torn.jpg").unlink()
    reports = {}
    for command in TOOLS:
        quick = " street.jpg --seconds 0.2 --cold-starts 1" if " bench" in command else ""
        reports[command.split()[1]] = json.loads(works(command + quick).stdout)
    assert reports["inspect"]["detector"]["box_format"] == "xyxy"
    assert (workplace / "yolov10n-half.onnx").exists()
    assert reports["verify"]["agree"] is True
    assert reports["bench"]["latency"]["stages"]
