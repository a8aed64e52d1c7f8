"""How help is laid out."""

import re

import pytest
import typer.main
from typer.testing import CliRunner

from detcli.cli.app import COMMANDS, app
from detcli.config.config import PANELS

GROUP = typer.main.get_command(app)
LOADED = {name: GROUP.get_command(None, name) for name in COMMANDS}  # type: ignore[attr-defined]


def help_of(command, help_option="--help"):
    """The help of a command, and its options by panel."""
    text = (
        CliRunner()
        .invoke(app, [command, help_option], prog_name="detcli", catch_exceptions=False)
        .stdout
    )
    options_by_panel = {}
    for title, rows in re.findall(r"^(\w[\w ]*):\n((?:  .*\n?)+)", text, re.MULTILINE):
        rows_of_flags = rows.replace("[no-]", "")
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", rows_of_flags, re.MULTILINE)
        options_by_panel[title] = options
    return text, options_by_panel


def flags(names):
    """Options as they are typed, by their names without dashes."""
    return {f"--{name}" for name in names.split()}


def test_predict_has_all_panels_in_order():
    text, panels = help_of("predict")
    assert list(panels) == ["Arguments"] + list(PANELS) + ["Options", "Examples"]
    assert panels["Options"] == ["--quiet", "--verbose", "--help"]
    examples = text.partition("Examples:\n")[2].splitlines()
    assert len(examples) == 3
    for example in examples:
        assert example.startswith("  detcli predict ")


@pytest.mark.parametrize(
    ("command", "shown", "left_out"),
    [
        ("predict", "recursive model conf classes track output format resume save report device",
         "batch max-pixels save-coco"),
        ("eval", "data images split advise plots", "batch tile"),
    ],
)  # fmt: skip
def test_the_short_help_is_a_screen_of_usual_options(command, shown, left_out):
    text, panels = help_of(command, "-h")
    _, all_panels = help_of(command)
    all_options = set()
    for options in all_panels.values():
        all_options.update(options)
    usual_options = set(panels["Options"])
    assert flags(f"{shown} quiet help") <= usual_options < all_options
    assert flags(left_out) <= all_options - usual_options
    assert len(text.splitlines()) <= 45
    assert f"detcli {command} --help shows {len(all_options) - len(panels['Options'])} more" in text


def test_examples_come_before_the_usual_options_which_many_commands_do_without():
    text, panels = help_of("predict", "-h")
    assert list(panels) == ["Examples", "Arguments", "Options"]
    assert text.count("\n  detcli predict ") == 3
    for command in ("inspect", "convert", "verify", "merge", "doctor"):
        assert help_of(command, "-h") == help_of(command)


@pytest.mark.parametrize("command", ["eval", "bench", "verify", "convert", "inspect"])
def test_shared_options_are_in_the_same_panel(command):
    panel_of = {}
    for title, options in help_of("predict")[1].items():
        for option in options:
            panel_of[option] = title
    for title, options in help_of(command)[1].items():
        for option in options:
            # predict writes COCO results, verify reads them.
            if title in PANELS and option in panel_of and option != "--coco-images":
                assert title == panel_of[option], option


def test_no_option_is_lost():
    for name, command in LOADED.items():
        if name != "models":
            text, _ = help_of(name)
            text = text.replace("[no-]", "")
            for param in command.params:
                if hasattr(param, "is_flag"):
                    assert param.opts[-1] in text


def test_flags_that_can_be_undone_take_no_second_name():
    assert re.search(r"^  -r, --\[no-\]recursive +Search", help_of("predict")[0], re.MULTILINE)
    assert re.search(r"^  --\[no-\]cuda-graph +Replay", help_of("bench")[0], re.MULTILINE)
    assert re.search(r"^  -r, --recursive +Search", help_of("convert")[0], re.MULTILINE)


def test_an_unknown_panel_is_a_mistake():
    titles = set(PANELS) | {"Options", None}
    for command in LOADED.values():
        for param in command.params:
            assert param.rich_help_panel in titles


def test_commands_are_described_in_whole_sentences():
    listing = CliRunner().invoke(app, ["--help"], prog_name="detcli").stdout.partition("Commands:")
    rows = re.findall(r"^  \w+ +((?:.*\n)(?: {3,}.*\n)*)", listing[2], re.MULTILINE)
    assert len(rows) == len(COMMANDS)
    for row in rows:
        assert row.strip().endswith(".")
        assert "..." not in row


def test_a_frame_at_the_end_is_left_out_as_help_says(invoke):
    words = " ".join(invoke("predict", "--help").stdout.split())
    assert "Start with the frame at this time in a video." in words
    assert "Stop before this time in a video: a frame at it is left out." in words


def test_suppression_takes_one_class_of_an_anchor_as_help_says(invoke):
    words = " ".join(invoke("predict", "--help").stdout.split())
    assert (
        "only the best class takes part, as with --unique, except in the families that docs"
        in words
    )
