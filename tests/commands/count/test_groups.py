"""Groups of images and boxes, held against a plain count."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st
from saved_records import box, error, record

from detcli.commands.count.groups import Groups
from detcli.commands.count.keys import BoxFilter, GroupKey
from detcli.config.config import Settings

NAMES = ("animal", "person")
BOXES = st.builds(
    lambda class_id, score, zones: box(score, name=NAMES[class_id], class_id=class_id) | zones,
    st.integers(0, 1),
    st.sampled_from([0.1, 0.2, 0.3]),
    st.sampled_from([{}, {"zones": []}, {"zones": ["a"]}, {"zones": ["a", "b"]}]),
)
SOURCES = st.sampled_from(["a.jpg", "site/a.jpg", "/mnt/site/a.jpg"])
RECORDS = st.one_of(
    st.builds(
        lambda source, boxes: record(source) | {"detections": boxes},
        SOURCES,
        st.lists(BOXES, max_size=3),
    ),
    st.builds(error, SOURCES),
)
KEYS = st.lists(st.sampled_from(["class", "folder", "zone"]), min_size=1, unique=True)


def group_of(values, by):
    """The values of the keys of a group, in their order."""
    return tuple(values[key] for key in by)


def plain_counts(records, by):
    """Images, boxes and failures of each group, each counted by a pass over all records."""
    images = defaultdict(set)
    boxes = Counter()
    failed = Counter()
    for number, fields in enumerate(records):
        folder = fields["source"].rpartition("/")[0] or "."
        boxes_of_image = Counter()
        for detection in fields.get("detections", []):
            zones = [None]
            if "zone" in by:
                zones = detection.get("zones") or [None]
            if detection["score"] > 0.2:
                for zone in zones:
                    values = {"class": detection["class_name"], "zone": zone, "folder": folder}
                    boxes_of_image[group_of(values, by)] += 1
        empty = group_of({"class": None, "zone": None, "folder": folder}, by)
        if "error" in fields:
            failed[empty] += 1
            continue
        for group in boxes_of_image or {empty}:
            images[group].add(number)
        boxes.update(boxes_of_image)

    counts = {}
    for group in images.keys() | failed.keys():
        counts[group] = (len(images[group]), boxes[group], failed[group])
    return counts


@given(st.lists(RECORDS, max_size=6), KEYS)
def test_groups_are_what_a_plain_count_gives(records, by):
    groups = Groups(tuple(GroupKey(key) for key in by), BoxFilter(Settings(conf=0.2)))
    for fields in records:
        groups.add(fields)
    counts = {}
    for values, group in groups:
        counts[values] = (group.images, group.boxes, group.failed)
    assert counts == plain_counts(records, by)
    assert groups.image_count + groups.failed_count == len(records)


def test_groups_are_sorted_by_number_then_text_and_unknown_ones_come_last():
    groups = Groups((GroupKey.BURST,), BoxFilter(Settings()))
    for burst in (10, 2, None):
        fields = {} if burst is None else {"burst": burst}
        groups.add(record("a.jpg", **fields))
    assert [values for values, _ in groups] == [(2,), (10,), ("unknown",)]
