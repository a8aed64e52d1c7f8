"""Helpers that take apart the items that names stand for."""

from dataclasses import replace
from pathlib import Path

import pytest
from origins import frames_of, sources_of

from detcli.config.inputs import InputOptions
from detcli.core.errors import InputError, SourceError
from detcli.data.record import Origin
from detcli.source.sources import Sources


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")


def file_sources(*names, written=(), **inputs):
    """The sources of the items, all of them files; the final total is checked."""
    with Sources(names, InputOptions(**inputs), written) as sources:
        items = list(sources)
        assert sources.progress.total == len(items)
    for item in items:
        assert item.origin.path == Path(item.origin.source)
    return sources_of(items)


def failure(name, kind=SourceError, **inputs):
    """The error message for a name without an input."""
    with Sources([name], InputOptions(**inputs)) as sources:
        (item,) = sources
        assert sources.progress.total in {1, None}
    assert replace(item.origin, path=None, time=None) == Origin(name)  # files have the first
    with pytest.raises(kind) as caught:
        item.load()
    assert caught.value.hint
    return str(caught.value)


def frames(*names, **inputs):
    """Source and number of each frame."""
    with Sources(names, InputOptions(**inputs)) as sources:
        items = list(sources)
        assert sources.progress.total == len(items)
    return list(zip(sources_of(items), frames_of(items), strict=True))


def read(source, **inputs):
    """The items of one source."""
    with Sources([str(source)], InputOptions(**inputs)) as sources:
        return list(sources)


def error_of(item):
    with pytest.raises(InputError) as caught:
        item.load()
    assert caught.value.hint
    return str(caught.value)
