"""JSON Lines: read, written, and a field of all records."""

import json


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def text_of(records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


def column_of(records, name):
    """What each record has in a field."""
    return [record[name] for record in records]


def optional_column_of(records, name, default=None):
    """What each record has in a field that some of them lack."""
    return [record.get(name, default) for record in records]


def records_with(records, name):
    """The records that have a field."""
    return [record for record in records if name in record]


def records_by_source(records):
    """The records by their sources; of several with the same source, the last."""
    return {record["source"]: record for record in records}


def detections_by_source(records):
    """The detections of each record, by its source."""
    return {record["source"]: record["detections"] for record in records}


def detections_of(records):
    """The detections of all records, in one list."""
    detections = []
    for record in records:
        detections.extend(record["detections"])
    return detections


def detection_counts(records):
    """How many detections each record has."""
    return [len(record["detections"]) for record in records]
