"""Folders of images, held against a plain definition."""

from hypothesis import given
from hypothesis import strategies as st
from json_lines import column_of
from saved_records import box, error, record

from detcli.commands.sort.assignment import Assignment
from detcli.commands.sort.rules import parse_rules

RULES = ["animal>=0.2", "person>0.3"]
BOXES = st.builds(
    lambda name, score: box(score, name=name),
    st.sampled_from(["animal", "person", "car"]),
    st.sampled_from([0.1, 0.2, 0.3, 0.4]),
)
SOURCES = st.sampled_from(["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
DETECTED = st.builds(
    lambda source, boxes: record(source) | {"detections": boxes}, SOURCES, st.lists(BOXES)
)
RECORDS = st.lists(st.one_of(DETECTED, st.builds(error, SOURCES)), max_size=8)
BURSTS = st.fixed_dictionaries(
    {}, optional={"a.jpg": st.integers(0, 1), "b.jpg": st.integers(0, 1)}
)


def highest_score(fields, class_name):
    """The highest score of a class in a record; 0 without one."""
    highest = 0.0
    for detection in fields["detections"]:
        if detection["class_name"] == class_name:
            highest = max(highest, detection["score"])
    return highest


def folder_of_record(fields):
    """The folder of an image that had this record only, and no burst."""
    if "error" in fields:
        return "failed"
    if highest_score(fields, "animal") >= 0.2:
        return "animal"
    if highest_score(fields, "person") > 0.3:
        return "person"
    return "empty"


def best(folders):
    """The folder that counts of several."""
    return min(folders, key=["animal", "person", "failed", "empty"].index)


def plain_folders(records):
    """The folder of each image: of its best record, or of the best record of its burst."""
    folders = {}
    for source in set(column_of(records, "source")):
        candidates = []
        bursts = []
        for fields in records:
            if fields["source"] == source:
                candidates.append(folder_of_record(fields))
                if "burst" in fields:
                    bursts.append(fields["burst"])
        if bursts and best(candidates) != "failed":
            for fields in records:
                if fields.get("burst") == bursts[0]:
                    candidates.append(folder_of_record(fields))
        folders[source] = best(candidates)
    return folders


@given(RECORDS, BURSTS)
def test_folders_are_those_of_the_plain_definition(records, bursts):
    assignment = Assignment(parse_rules(RULES))
    for fields in records:
        if "error" not in fields and fields["source"] in bursts:
            fields["burst"] = bursts[fields["source"]]
        assignment.add(fields, 0)
    assert dict(assignment) == plain_folders(records)
    assert len(assignment) == len(dict(assignment))
