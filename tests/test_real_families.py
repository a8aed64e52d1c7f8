"""Files of other families against their own answers; skipped where ../shared is not there."""

import re

import pytest
from conftest import SHARED
from families import HEADER, PAGE, TABLE, described, measure
from thinning import thin

pytestmark = pytest.mark.slow

FAMILIES = described(SHARED / "families")


@pytest.fixture(scope="module")
def table():
    """The lines of the table in tests/families.md."""
    return TABLE.search(PAGE.read_text(encoding="utf-8"))[0].partition(HEADER)[2].splitlines()[:-2]


@pytest.mark.parametrize("name", thin("files of other families", FAMILIES or [None], 12))
def test_a_file_gives_its_familys_own_answers_as_the_table_says(name, table, shared):
    shared("families")
    result = measure(FAMILIES[name])
    assert result.agrees, result
    (line_of_table,) = (line for line in table if line.startswith(f"| {name} |"))
    start, figures = apart(result.line)
    expected_start, expected_figures = apart(line_of_table)
    assert start == expected_start, "run python -m tests.families"
    for figure, expected in zip(figures, expected_figures, strict=True):
        assert abs(figure - expected) <= 0.05 * result.expected, "run python -m tests.families"


def apart(line):
    """A line without the figures at its end, and these, which may differ between machines."""
    start, _, agreement = line.rpartition("| ")
    figures = [int(number) for number in re.findall(r"\d+", agreement)]
    while len(figures) < 3:
        figures.append(0)
    return start, figures[:3]


def test_the_table_has_a_line_for_each_file(table, shared):
    shared("families")
    names = []
    for line in table:
        names.append(line.split(" | ")[0].removeprefix("| "))
    assert names == list(FAMILIES)
