"""What the parts of `promise` compute with, made without a command: inputs and decks."""

from detcli.commands.promise.deck import ALL, Deck
from detcli.commands.promise.inputs import InputColumns, WantedClasses
from detcli.commands.promise.thresholds import candidate_thresholds
from detcli.commands.promise.unit_kind import UnitKind


def read_inputs(records):
    """Read records of images in which animals are looked for."""
    inputs = InputColumns(WantedClasses(["animal"]), UnitKind.parse("image"))
    for fields in records:
        inputs.add(fields)
    return inputs


def deck_of(units, *, plan, loss, above=ALL, sure=0.95):
    """A deck of which only what the bounds need is real."""
    return Deck(
        version=1,
        detcli_version="",
        records="",
        records_sha256=None,
        scores_sha256=units.scores_sha256,
        model="m",
        model_sha256=None,
        settings={},
        unit_count=len(units),
        failed_count=0,
        classes=["animal"],
        unit_option="image",
        highest_threshold=0.05,
        units_below=units.count_below(0.05),
        losses=loss,
        sureness=sure,
        expected_share=0.05,
        round_sizes=plan,
        thresholds=candidate_thresholds(units.scores, 0.05),
        seed=0,
        sample_above=above,
        repeated_units=[],
        best_scoring_units=[],
        missing_units=[],
        shortened_units=[],
    )
