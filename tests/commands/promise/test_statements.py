"""Sentences about a promise, which never say more than was computed."""

import pytest
from decks import deck_of, read_inputs
from saved_records import record

from detcli.commands.promise.evaluation import RoundResult, Row, SeenAbove
from detcli.commands.promise.statements import Wording, loss_text, sureness_text
from detcli.commands.promise.unit_kind import UnitKind
from detcli.commands.promise.units import make_units


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


def row_of(threshold, *, max_lost):
    """A row below which up to `max_lost` animals may be lost, where 50 others were seen."""
    return Row(
        threshold=threshold,
        units_below=1000,
        dealt=100,
        misses=1,
        max_lost=max_lost,
        animals_seen=50,
        share=max_lost / (max_lost + 50),
        all_misses=1,
        all_animals_seen=50,
    )


def hint_after_last_round(*rows):
    """The hint of a review of one round that promises nothing."""
    records = [record(f"{number}.jpg") for number in range(2000)]
    units = make_units(read_inputs(records), UnitKind.parse("image"), 0)
    deck = deck_of(units, plan=[100], loss=[0.05])
    above = SeenAbove(units=50, looked_at=50, animals=50, at_least=50)
    result = RoundResult(round=1, error=0.05, rows=rows, above=above, seen_share=None)
    return Wording(deck).no_promise_error(result).hint


def test_a_larger_loss_is_suggested_before_a_lower_threshold():
    hint = hint_after_last_round(row_of(0.1, max_lost=10), row_of(0.2, max_lost=40))
    assert "deal anew with --lost 5%,17%; or with --below 0.1; " in hint


def test_a_lower_threshold_alone_is_a_whole_sentence():
    """No larger loss is suggested where more than half of the animals may be lost."""
    hint = hint_after_last_round(row_of(0.1, max_lost=60), row_of(0.2, max_lost=90))
    assert hint.startswith("deal anew with --below 0.1; ")
