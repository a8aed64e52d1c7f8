import pytest

from detcli.commands.bench import warm_up


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch):
    """These tests are about what is measured, not about how well."""
    monkeypatch.setattr(warm_up, "SHORTEST_S", 0.0)
