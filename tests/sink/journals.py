"""Journals that tests write and read."""

import json

from sample_records import image

from detcli.core.errors import OutputError
from detcli.data.record import Origin
from detcli.sink.journal import Journal


def write(path, *records):
    journal = Journal(path)
    for record in records:
        journal.write(record)
    journal.close()


def sources(path):
    return [json.loads(line)["source"] for line in path.read_text().splitlines()]


def settings_of(path):
    """The settings of each record, None where it has none."""
    return [json.loads(line).get("settings") for line in path.read_text().splitlines()]


def run(path, names):
    """Run over all inputs that the journal does not have."""
    journal = Journal(path)
    for name in names:
        if not journal.skip(Origin(name)):
            try:
                journal.write(image(name))
            except OutputError:
                journal.close()
                raise
    journal.close()
