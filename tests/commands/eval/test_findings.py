import json
from importlib import resources

from detcli.commands.eval.findings import (
    CROWD,
    KINDS,
    MISSING,
    MOST_EXAMPLES,
    OUTSIDE,
    Findings,
    Level,
)


def test_failures_come_first_and_notes_last():
    findings = Findings()
    for kind in (CROWD, OUTSIDE, MISSING):
        findings.add(kind, "a")
    assert [one.level for one in findings.report()] == [Level.FAILURE, Level.WARNING, Level.NOTE]


def test_a_million_take_no_more_room_than_a_few():
    findings = Findings()
    for number in range(1000):
        findings.add(OUTSIDE, str(number), count=1000)
    (found,) = findings.report()
    assert found.count == 1_000_000
    assert found.examples == ("0", "1", "2", "3", "4")
    assert len(found.examples) == MOST_EXAMPLES


def test_none_of_a_kind_is_no_finding():
    findings = Findings()
    findings.add(OUTSIDE, "a", count=0)
    assert findings.report() == ()


def test_the_schema_knows_every_kind():
    schema = json.loads(resources.files("detcli").joinpath("commands/eval/schema.json").read_text())
    item = schema["properties"]["findings"]["items"]["properties"]
    assert item["kind"]["enum"] == [kind.title for kind in KINDS]
    assert item["level"]["enum"] == list(Level)
