"""JSON Lines: read, written, and a field of all records."""

import json


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def text_of(records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


def column_of(records, name):
    """What each record has in a field."""
    return [record[name] for record in records]
