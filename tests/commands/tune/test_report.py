"""The choice, its place in the user's file, and the chart."""

import io
import tomllib
from dataclasses import replace

import pytest
from rich.console import Console

from detcli.commands.tune.report import (
    BoxAgreement,
    Choice,
    Configuration,
    Measurement,
    TuneReport,
    TuneRow,
    equally_fast,
    possibly_fastest,
    render,
    write_defaults,
)
from detcli.compare.detections import COARSE
from detcli.core.errors import OutputError

SHA256, MACHINE = "ab" * 32, 'Processor "X", 2 cores'
CHOICE = Choice("many", "openvino half", 2.35, (), {"device": "openvino", "half": True}, "detcli")


def row(name, estimate, noise=0.0, *, kind="many", keeps=True, equal=None):
    figure = Measurement.after_round(None, estimate, estimate - noise, estimate + noise)
    boxes = None if equal is None else BoxAgreement(equal, 1, 2, 0.1, 3.0)
    tune_row = TuneRow(name, Configuration(name), boxes=boxes, keeps_boxes=keeps)
    setattr(tune_row, kind, figure)
    return tune_row


def row_names(rows):
    return [row.name for row in rows]


def report_of(*rows, choices=(CHOICE,)):
    tolerance = replace(COARSE, boxes=0.005)
    return TuneReport("m.onnx", SHA256, MACHINE, 0.25, tolerance, rows, choices, 1.0, ())


@pytest.mark.parametrize(
    ("kind", "figures", "may_be", "expected"),
    [
        ("many", {"cpu": 10, "openvino": 20}, ["openvino"], ["openvino"]),
        ("one", {"cpu": 10, "openvino": 20}, ["cpu"], ["cpu"]),
        ("start", {"cpu": 10, "openvino": 10}, ["cpu", "openvino"], ["cpu", "openvino"]),
        ("many", {"a": 10, "b": 11, "c": 12}, ["b", "c"], ["c"]),  # b's interval touches c's
        ("many", {"a": 11.49, "b": 11.5, "c": 12}, ["a", "b", "c"], ["b", "c"]),
        ("one", {"a": 10.51, "b": 10.5, "c": 10}, ["a", "b", "c"], ["b", "c"]),
    ],
)
def test_the_fastest_and_what_is_as_fast_within_the_noise(kind, figures, may_be, expected):
    rows = [row(name, figure, 0.5, kind=kind) for name, figure in figures.items()]
    assert row_names(possibly_fastest(rows, kind)) == may_be
    assert row_names(equally_fast(rows, kind)) == expected


def test_a_figure_of_unknown_noise_may_be_off_by_a_quarter():
    rows = [row("a", 1, kind="start"), row("b", 1.5, kind="start"), row("c", 1.6, kind="start")]
    assert row_names(possibly_fastest(rows, "start")) == ["a", "b"]
    assert row_names(equally_fast(rows, "start")) == ["a"]


def test_noise_of_its_own_makes_no_way_better():
    """The third is certainly faster than the first, and perhaps than the second, the slowest."""
    rows = [row("cpu", 10, 0.1), row("noisy", 8, 5), row("half", 12, 0.1)]
    assert row_names(possibly_fastest(rows, "many")) == ["noisy", "half"]
    assert row_names(equally_fast(rows, "many")) == ["half"]


def test_what_changes_boxes_or_was_not_measured_is_no_choice():
    unmeasured = TuneRow("x", Configuration("x"), keeps_boxes=True)
    rows = [row("cpu", 10), row("half", 99, keeps=False), unmeasured]
    assert row_names(possibly_fastest(rows, "many")) == ["cpu"]


def test_a_figure_of_several_turns():
    figure = None
    for estimate, low, high in ((10, 9, 11), (30, 29, 31), (20, 19, 21)):
        figure = Measurement.after_round(figure, estimate, low, high)
    assert figure.estimate == 20
    assert figure.low == 12.5  # the middle half of the turns
    assert figure.high == 27.5
    assert figure.turns == ((10, 9, 11), (30, 29, 31), (20, 19, 21))
    quiet = Measurement.after_round(Measurement.after_round(None, 10, 8, 12), 10, 8, 12)
    assert quiet.low == 8
    assert quiet.high == 12


def test_a_figure_without_an_interval():
    figure = Measurement.after_round(None, 5)
    assert figure.low == 5
    assert figure.estimate == 5
    assert figure.high == 5


def test_a_table_has_what_ran_and_the_reasons_of_the_others():
    failed = TuneRow("cuda", Configuration("cuda"), error="no GPU")
    report = report_of(row("cpu", 45.2), row("openvino half", 106, equal=0.97, keeps=False), failed)
    console = Console(width=120, file=io.StringIO())
    for part in render(report):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert " 45.2 " in text
    assert " 97.0% " in text
    assert "cuda: no GPU" in text
    assert "many images: openvino half, 2.35 times as fast as cpu" in text


# The user's file

OTHER = f'[tuned.{"cd" * 32}."elsewhere"]\nmany = {{ device = "cpu" }}\n'


@pytest.mark.parametrize("before", ["", "conf = 0.4", "# mine\nconf = 0.4\n", OTHER])
def test_a_choice_is_added_to_the_file_and_replaced(tmp_path, before):
    path = tmp_path / "detcli.toml"
    path.write_text(before)
    write_defaults(path, report_of())
    first = path.read_text()
    assert first.startswith(before.rstrip())
    many = {"device": "openvino", "half": True}
    assert tomllib.loads(first)["tuned"][SHA256][MACHINE] == {"many": many}
    path.write_text(f"{first}\n{OTHER if before != OTHER else ''}")
    write_defaults(path, report_of(choices=(replace(CHOICE, options={"device": "cpu"}),)))
    defaults = tomllib.loads(path.read_text())
    assert defaults["tuned"][SHA256][MACHINE] == {"many": {"device": "cpu"}}
    assert defaults["tuned"]["cd" * 32] == {"elsewhere": {"many": {"device": "cpu"}}}
    assert path.read_text().count(SHA256) == 1
    assert defaults.get("conf") == (0.4 if "conf" in before else None)


def test_other_machines_keep_their_choice(tmp_path):
    path = tmp_path / "detcli.toml"
    for machine in ("one", "two"):
        write_defaults(path, replace(report_of(), machine=machine))
    assert tomllib.loads(path.read_text())["tuned"][SHA256].keys() == {"one", "two"}


def test_what_is_in_the_way_is_left_alone(tmp_path):
    path = tmp_path / "detcli.toml"
    path.write_text("tuned = {}\n")
    with pytest.raises(OutputError, match="cannot add tables") as caught:
        write_defaults(path, report_of())
    assert 'device = "openvino"' in caught.value.hint
    assert path.read_text() == "tuned = {}\n"


@pytest.mark.parametrize(
    "entry", ["tuned = 3", f"[tuned]\n{SHA256} = 3", f"[tuned]\n{SHA256} = []"]
)
def test_a_number_in_the_place_of_a_table_is_left_alone(tmp_path, entry):
    path = tmp_path / "detcli.toml"
    path.write_text(entry)
    with pytest.raises(OutputError, match="cannot add tables") as caught:
        write_defaults(path, report_of())
    assert path.read_text() == entry

    instruction, _, table_text = caught.value.hint.partition("\n")
    assert instruction == "remove what is in their place under [tuned], and add them yourself:"
    expected_tables = {SHA256: {MACHINE: {CHOICE.kind: CHOICE.options}}}
    assert tomllib.loads(table_text) == {"tuned": expected_tables}
