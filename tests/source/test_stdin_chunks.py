"""Bytes of standard input, as they come."""

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from detcli.core.errors import SourceError
from detcli.source import stdin as module


def test_standard_input_may_be_replaced_by_another_object(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert list(module.stdin_chunks(threading.Event())) == [b"abc"]


@pytest.mark.parametrize(
    ("stdin", "reason"),
    [(None, "closed"), (SimpleNamespace(isatty=lambda: True), "is a terminal")],
)
def test_a_closed_input_or_a_terminal_is_an_error(monkeypatch, stdin, reason):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(SourceError, match=reason):
        next(module.stdin_chunks(threading.Event()))
