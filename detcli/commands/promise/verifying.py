"""Recomputes a promise from the records and from what promise.json says of the answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from detcli.commands.promise.bounds import fewest_positives, smallest_share
from detcli.commands.promise.deck import TENTH, error_of
from detcli.commands.promise.draw import Draw
from detcli.commands.promise.evaluation import Row, bound_row
from detcli.commands.promise.inputs import WantedClasses
from detcli.commands.promise.promise_file import read_promise
from detcli.commands.promise.reading import file_hash, read_inputs, require_unchanged
from detcli.commands.promise.statements import loss_text, sureness_text
from detcli.commands.promise.thresholds import grid_of
from detcli.commands.promise.unit_kind import UnitKind
from detcli.commands.promise.units import Units, make_units
from detcli.core import Fields
from detcli.core.errors import CheckError, UsageError

HINT = "check the review again: detcli promise check"


def verify_promise(path: Path, records: str, advance: Callable[[str], object]) -> str:
    """Recompute a promise, and say that it holds.

    Args:
        path: The file of the promise.
        records: The records that it is about.
        advance: Is called with the source of each record.

    Raises:
        UsageError: The records are others, or the file is not a promise.
        CheckError: It promises nothing, or what it says does not follow.
    """
    fields = read_promise(path)
    try:
        _require_possible(fields, path)
        units = _units_of(fields, records, advance)
        _require_same_records(fields, units, records, path)
        _require_asked_before(fields, units, path)
        rows = _rows_of(fields, units)
        return _judge(fields, rows, path)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error}", "name what promise check wrote") from error


def _require_possible(fields: Fields, path: Path) -> None:
    """Refuse a promise whose numbers cannot be, whatever the records are.

    Raises:
        CheckError: They cannot.
    """
    above = fields["above"]
    names = fields["animals_below"] + fields["doubtful_below"]
    checks = {
        "its round": type(fields["round"]) is int and 1 <= fields["round"] <= len(fields["plan"]),
        "its plan": all(type(count) is int and count >= 0 for count in fields["plan"]),
        "its probability": 0 < fields["sure"] < 1,
        "its losses": all(0 < loss < 1 for loss in fields["asked"]),
        "its list of names, which has one twice,": len(names) == len(set(names)),
        "its count above": 0 <= above["animals"] <= above["looked_at"] <= above["units"],
        "its bound above": 0 <= above["at_least"] <= above["units"],
        "its known animals": 0 <= fields["known"]["seen"] <= fields["known"]["looked_at"],
    }
    for subject, is_possible in checks.items():
        if not is_possible:
            raise CheckError(f"{path} does not hold: {subject} cannot be", HINT)


def _require_same_records(fields: Fields, units: Units, records: str, path: Path) -> None:
    """Compare what a promise says of the records with the records.

    Raises:
        CheckError: It differs.
    """
    checks = {
        "the number of units": fields["units"] == len(units),
        "the number of failed inputs": fields["failed"] == len(units.failed),
        "the hash of the records": fields["records_sha256"] in {None, file_hash(records)},
    }
    for subject, is_same in checks.items():
        if not is_same:
            raise CheckError(f"{path} does not hold: {subject} is another in {records}", HINT)


def _units_of(fields: Fields, records: str, advance: Callable[[str], object]) -> Units:
    """Read the units that a promise is about."""
    kind = UnitKind.parse(fields["unit"])
    inputs = read_inputs(records, WantedClasses(fields["classes"]), kind, advance)
    units = make_units(inputs, kind, int(fields["seed"]))
    require_unchanged(fields["scores_sha256"], units, records)
    return units


def _require_asked_before(fields: Fields, units: Units, path: Path) -> None:
    """Check what a promise says it was asked for: thresholds, probabilities and animals above.

    Raises:
        CheckError: Something of it does not follow from the scores and from the rules.
    """
    above = fields["above"]
    draw = Draw(units, below=fields["below"], plan=fields["plan"], above=above["looked_at"])
    is_above_sampled = above["looked_at"] < draw.units_above
    seen_share = fields["seen_share"]
    total_error = 1 - fields["sure"]
    error = error_of(
        total_error,
        losses=len(fields["asked"]),
        round_number=fields["round"],
        rounds=len(fields["plan"]),
        tenths=int(is_above_sampled) + int(seen_share is not None),
    )
    at_least = above["animals"]
    if is_above_sampled:
        at_least = fewest_positives(
            at_least, units=draw.units_above, drawn=len(draw.above), error=TENTH * total_error
        )
    expected_share = None
    if seen_share is not None:
        known_animals = fields["known"]
        expected_share = smallest_share(
            known_animals["seen"], trials=known_animals["looked_at"], error=TENTH * total_error
        )
    checks = {
        "its list of thresholds": [row["t"] for row in fields["rows"]]
        == grid_of(units.scores, fields["below"]),
        "its probability of an error": fields["error"] == error,
        "its loss": fields["lost"] is None or fields["lost"] in fields["asked"],
        "the number above": above["units"] == draw.units_above,
        "the bound on the animals above": above["at_least"] == at_least,
        "the share that reviewers see": seen_share == expected_share,
    }
    for subject, is_as_expected in checks.items():
        if not is_as_expected:
            raise CheckError(f"{path} does not hold: {subject} does not follow", HINT)


def _rows_of(fields: Fields, units: Units) -> list[Row]:
    """Compute the bound at each threshold of a promise anew."""
    above = fields["above"]
    draw = Draw(units, below=fields["below"], plan=fields["plan"], above=above["looked_at"])
    all_scores = dict(zip(units.names(draw.below), units.scores[draw.below], strict=True))
    dealt_names = units.names(draw.below_by(fields["round"]))
    names_of_rounds = frozenset(dealt_names)
    dealt_scores = [all_scores[name] for name in dealt_names]
    animals = fields["animals_below"]
    doubtful = fields["doubtful_below"]
    rows = []
    for stored_row in fields["rows"]:
        threshold = stored_row["t"]
        lost = [name for name in animals + doubtful if all_scores[name] < threshold]
        animals_kept = [name for name in animals if all_scores[name] >= threshold]
        row = bound_row(
            threshold,
            units_below=units.count_below(threshold),
            dealt=len([score for score in dealt_scores if score < threshold]),
            misses=len(names_of_rounds.intersection(lost)),
            animals_seen=above["at_least"] + len(names_of_rounds.intersection(animals_kept)),
            error=fields["error"],
            seen_share=fields["seen_share"],
        )
        row = replace(
            row,
            all_misses=len(lost),
            all_animals_seen=above["at_least"] + len(animals_kept),
        )
        rows.append(row)
    return rows


def _judge(fields: Fields, rows: Sequence[Row], path: Path) -> str:
    """Compare recomputed rows with those of a promise, and say what it promises.

    Raises:
        CheckError: They differ, or the threshold does not follow from them.
    """
    for row, stored_row in zip(rows, fields["rows"], strict=True):
        if row.to_json() != stored_row:
            raise CheckError(
                f"{path} does not hold: at {row.threshold}, {row.to_json()} follows", HINT
            )
    threshold = fields["t"]
    if threshold is None:
        raise CheckError(f"{path} promises nothing", HINT)
    for row in rows:
        if row.threshold <= threshold and not row.keeps(fields["lost"]):
            lost_share = loss_text(row.most_lost, row.most_lost + row.animals_seen)
            raise CheckError(
                f"{path} does not hold: below {row.threshold}, {lost_share} may be lost, and "
                f"{row.all_misses:,} were seen",
                HINT,
            )
    promised_rows = [row for row in rows if row.threshold == threshold]
    if len(promised_rows) != 1:
        raise CheckError(f"{path} does not hold: {threshold} is not a threshold of its rows", HINT)
    (row,) = promised_rows
    if not row.units_below:
        raise CheckError(f"{path} promises nothing: no unit is below {threshold}", HINT)
    if fields["put_aside"] != row.units_below:
        raise CheckError(f"{path} does not hold: {row.units_below:,} are put aside", HINT)
    lost_share = loss_text(row.most_lost, row.most_lost + row.animals_seen)
    return (
        f"it holds: --conf {row.threshold}, at most {lost_share} are lost, "
        f"{sureness_text(fields['sure'])} sure; {row.units_below:,} need no eyes"
    )
