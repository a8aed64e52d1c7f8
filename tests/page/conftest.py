"""A browser for the page."""

import pytest


@pytest.fixture
def browser(chromium):
    """A browser in which nothing goes wrong, and which loads nothing from elsewhere."""
    chromium.messages(), chromium.requests()
    yield chromium
    assert chromium.messages() == []
    outside = [name for name in chromium.requests() if "/" in name and "://" in name]
    assert outside == []
