"""Sentences about a promise, which never say more than was computed."""

import pytest

from detcli.commands.promise.statements import loss_text, sureness_text


@pytest.mark.parametrize(
    ("lost", "animals", "text"),
    [
        (0, 10, "0.0%"),
        (142, 10_000, "1.5%"),
        (5, 100, "5.0%"),
        (1, 10_000, "0.1%"),
        (3, 0, "100.0%"),
    ],
)
def test_a_loss_is_rounded_up(lost, animals, text):
    assert loss_text(lost, animals) == text


@pytest.mark.parametrize(
    ("sure", "text"),
    [
        (0.95, "95%"),
        (0.975, "97.5%"),
        (0.99999999, "99.9999%"),
        (1 - 0.05 / 3, "98.3333%"),
        (0.001, "0.1%"),
    ],
)
def test_a_sureness_is_rounded_down(sure, text):
    assert sureness_text(sure) == text
