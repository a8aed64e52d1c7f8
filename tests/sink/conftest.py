"""What tests of several sinks share."""

import browser as browsers
import pytest


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One browser for all tests that need one, as it takes seconds to start."""
    browsers.require()
    with browsers.chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
