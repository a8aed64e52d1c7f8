"""After Ctrl-C, a run says how to continue; who types that has what a whole run writes."""

import csv
import itertools
import json
import shlex

import optional
import pytest
from json_lines import lines
from thinning import thin

from detcli.run.pipeline import Pipeline

DONE = 4  # images before the interrupt
ONLY_RESUMED = ("settings", "file_stamp")  # fields that only records of --resume have


@pytest.fixture
def interrupt(monkeypatch, predict):
    """Run `detcli predict LINE`, interrupted after DONE images; return the commands it prints."""

    def run(line):
        whole_run = Pipeline.run

        def interrupted_run(pipeline, items, skip):
            for number, record in enumerate(whole_run(pipeline, items, skip)):
                if number == DONE:
                    raise KeyboardInterrupt
                yield record

        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "run", interrupted_run)
            completed = predict(line, code=130)
        assert f"interrupted after {DONE} of " in completed.stderr
        printed = completed.stderr.splitlines()
        commands = [text.strip() for text in printed if text.startswith("    detcli ")]
        return commands, completed.stderr

    return run


@pytest.fixture
def follow(interrupt, invoke, tmp_path):
    """Interrupt a run, and type what it prints; return the commands and what it said."""

    def run(line):
        commands, stderr = interrupt(line)
        assert commands
        for command in commands:
            words = shlex.split(command)
            assert words[0] == "detcli"
            completed = invoke(words[1:], cwd=tmp_path)
            assert completed.returncode == 0, completed.stderr
        return commands, stderr

    return run


def plain(records):
    """Records without what only a run with --resume says."""
    plain_records = []
    for record in records:
        for key in ONLY_RESUMED:
            record.pop(key, None)
        plain_records.append(record)
    return plain_records


def read_json_lines(path):
    return plain(lines(path.read_text()))


def read_json(path):
    return plain(json.loads(path.read_text()))


def read_csv(path):
    return list(csv.reader(path.read_text().splitlines()))


def read_parquet(path):
    return plain(optional.require("pyarrow.parquet").read_table(path).to_pylist())


def read_megadetector(path):
    """The images; the run alone knows its confidence and the classes that it did not find."""
    return json.loads(path.read_text())["images"]


def read_tasks(path):
    """Tasks for Label Studio."""
    return json.loads(path.read_text())


OUTPUTS = [
    ("jsonl", "", read_json_lines),
    ("json", "", read_json),
    ("csv", "", read_csv),
    pytest.param("parquet", "", read_parquet, marks=optional.needs("pyarrow")),
    ("json", "--format megadetector --base pics", read_megadetector),
    ("json", "--format labelstudio", read_tasks),
    ("txt", "--format table", lambda path: path.read_text()),
]


@pytest.mark.parametrize(("suffix", "options", "read"), OUTPUTS)
def test_the_printed_commands_write_what_a_whole_run_writes(
    follow, predict, make_images, tmp_path, suffix, options, read
):
    make_images(10)
    predict(f"pics --conf 0.6 {options} -o whole.{suffix}")
    follow(f"pics --conf 0.6 {options} -o parts.{suffix}")
    assert read(tmp_path / f"parts.{suffix}") == read(tmp_path / f"whole.{suffix}")


def visible_contents(folder):
    """The content of every visible file in a folder and its subfolders, by relative path."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            contents[str(path.relative_to(folder))] = path.read_bytes()
    return contents


@pytest.mark.parametrize(
    "options",
    [
        "--save",
        "--save-txt",
        "--save-crops",
        "--save-dataset",
        "--line-width 3 --labels none --save",
    ],
)
def test_folders_have_what_a_whole_run_writes(follow, predict, make_images, tmp_path, options):
    make_images(10)
    predict(f"pics --conf 0.6 -o whole.jsonl {options} folder")
    whole_folder = visible_contents((tmp_path / "folder").rename(tmp_path / "whole"))
    assert len(whole_folder) >= 4
    ((predict_line,), _) = follow(f"pics --conf 0.6 -o parts.jsonl {options} folder")
    assert "--resume parts.jsonl" in predict_line
    assert visible_contents(tmp_path / "folder") == whole_folder
    assert read_json_lines(tmp_path / "parts.jsonl") == read_json_lines(tmp_path / "whole.jsonl")


def test_a_page_has_all_images(follow, make_images, tmp_path):
    make_images(10)
    follow("pics --conf 0.6 -o parts.jsonl --report page")
    assert len(list(tmp_path.glob("page/pictures/*/*/*.jpg"))) == 10


def test_options_of_a_run_are_in_the_command(follow, predict, make_images, tmp_path):
    make_images(10).rename(tmp_path / "my pics")
    options = (
        "--conf 0.3,red=0.6 --classes red,green --max-det 5 -r --max-pixels 90000 --device cpu"
    )
    predict(f"'my pics' {options} -o whole.csv")
    commands, _ = follow(f"'my pics' {options} -o parts.csv")
    assert commands[0].startswith("detcli predict 'my pics' --recursive ")
    assert commands[1] == "detcli merge parts.jsonl -o parts.csv"
    assert read_csv(tmp_path / "parts.csv") == read_csv(tmp_path / "whole.csv")


def test_what_resume_excludes_is_left_out_and_said(follow, make_images, tmp_path):
    make_images(10)
    line = "pics --conf 0.6 -o a.jsonl --save-coco coco.json --fail-if 'red>100'"
    (commands, stderr) = follow(line)
    assert "hint: continue without --fail-if and --save-coco with:" in stderr
    assert len(commands) == 1
    assert len(lines((tmp_path / "a.jsonl").read_text())) == 10


def test_a_file_that_is_there_is_not_continued(interrupt, make_images, tmp_path):
    make_images(10)
    (tmp_path / "a.jsonl").write_text("{}")
    commands, stderr = interrupt("pics --conf 0.6 -o a.csv")
    assert "hint: this run cannot be continued; one that can:" in stderr
    assert "--resume a-2.jsonl" in commands[0]
    assert commands[1] == "detcli merge a-2.jsonl -o a.csv"


@pytest.mark.parametrize("options", ["", "--format csv"])
def test_standard_output_is_not_continued(interrupt, make_images, options):
    make_images(10)
    (command,), _ = interrupt(f"pics --conf 0.6 {options}")
    assert command.endswith("--resume boxes.jsonl")


def test_bursts_are_numbered_afterwards(interrupt, make_images):
    make_images(10)
    commands, _ = interrupt("pics --conf 0.6 --burst 60s -o a.jsonl")
    assert commands[0].endswith("--resume a-2.jsonl")
    assert commands[1] == "detcli merge a-2.jsonl --burst 60.0 -o a.jsonl"


def test_many_inputs_are_not_listed(interrupt, make_images):
    names = " ".join(f"pics/{path.name}" for path in sorted(make_images(70).iterdir()))
    commands, stderr = interrupt(f"{names} --conf 0.6 -o a.jsonl")
    assert commands == []
    sentence = "with --resume a.jsonl in place of --output, the same command goes on from here"
    assert f"  hint: {sentence}" in stderr
    _, stderr = interrupt(f"{names} --conf 0.6 -o a.csv")
    assert "hint: this run cannot be continued; one with --resume a-2.jsonl can" in stderr


def test_the_same_command_goes_on_with_resume(interrupt, make_images):
    make_images(10)
    commands, stderr = interrupt("pics --conf 0.6 --resume a.jsonl")
    assert commands == []
    assert stderr.endswith("  hint: the same command goes on from here\n")


FORMATS = ("jsonl", "csv")
OPTIONS_OF_VIDEOS = ("", "--every 0.3s", "--zone z=0,0,1,0,1,1,0,1")
FILMED = [
    pytest.param(options, suffix)
    for options, suffix in itertools.product(OPTIONS_OF_VIDEOS, FORMATS)
]
TRACKED = [
    pytest.param("--track bytetrack", suffix, marks=optional.needs("trackers"))
    for suffix in FORMATS
]


@pytest.mark.parametrize(
    ("options", "suffix"), thin("videos that are continued", FILMED, 4) + TRACKED
)
def test_frames_are_those_of_a_whole_run(follow, predict, make_video, tmp_path, suffix, options):
    make_video("a.mp4", red_from=0)
    predict(f"a.mp4 --conf 0.6 {options} -o whole.{suffix}")
    follow(f"a.mp4 --conf 0.6 {options} -o parts.{suffix}")
    read = {"jsonl": read_json_lines, "csv": read_csv}[suffix]
    assert read(tmp_path / f"parts.{suffix}") == read(tmp_path / f"whole.{suffix}")
