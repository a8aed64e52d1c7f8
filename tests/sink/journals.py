"""Journals that tests write and read."""

from json_lines import column_of, lines
from sample_records import image

from detcli.core.errors import OutputError
from detcli.data.record import Origin
from detcli.sink.journal import Journal


def write(path, records):
    """Write records to a new journal."""
    journal = Journal(path)
    for record in records:
        journal.write(record)
    journal.close()


def sources(path):
    return column_of(lines(path.read_text()), "source")


def settings_of(path):
    """The settings of each record, None where it has none."""
    return [record.get("settings") for record in lines(path.read_text())]


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
