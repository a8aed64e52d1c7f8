import pytest

from detcli.commands.bench import sampling


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch):
    """Shorten the warm-up: these tests check reports, not timings."""
    monkeypatch.setattr(sampling, "MIN_WARM_UP_S", 0.0)
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 0.5)
