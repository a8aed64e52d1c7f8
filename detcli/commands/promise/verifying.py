"""Recomputes a promise from the records and from what promise.json says about the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from detcli.commands.promise.bounds import min_positives, smallest_share
from detcli.commands.promise.deck import FURTHER_BOUND_SHARE, split_error
from detcli.commands.promise.draw import RandomSample
from detcli.commands.promise.evaluation import Row, bound_row
from detcli.commands.promise.inputs import WantedClasses
from detcli.commands.promise.promise_file import read_promise
from detcli.commands.promise.reading import file_hash, read_inputs, require_unchanged
from detcli.commands.promise.statements import loss_text, sureness_text
from detcli.commands.promise.thresholds import candidate_thresholds
from detcli.commands.promise.unit_kind import UnitKind
from detcli.commands.promise.units import Units, make_units
from detcli.core import Fields
from detcli.core.errors import CheckError, UsageError

HINT = "check the review again: detcli promise check"


def verify_promise(path: Path, records: str, advance: Callable[[str], object]) -> str:
    """Check a promise against the records and its list of answers, and return what it promises.

    Args:
        path: The file of the promise.
        records: The records that it is about.
        advance: Is called with the source of each record.

    Raises:
        UsageError: The records have different scores, or the file is not a promise.
        CheckError: It promises nothing, or what it says does not follow.
    """
    fields = read_promise(path)
    try:
        _require_possible(fields, path)
        units = _units_of(fields, records, advance)
        _require_same_records(fields, units, records, path)
        _require_asked_before(fields, units, path)
        rows = _recompute_rows(fields, units)
        _require_same_rows(fields, rows, path)
        promised_row = _require_promised_row(fields, rows, path)
        return _holds_text(promised_row, sureness=fields["sure"])
    # The file may come from anyone, and a field of it have any type or value.
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"{path} is damaged: {error}", "name a file that promise check wrote"
        ) from error


def _require_possible(fields: Fields, path: Path) -> None:
    """Refuse a promise whose numbers contradict each other, whatever the records are.

    Args:
        fields: The promise, as in promise.json. A value of a wrong type may raise other errors,
            which `verify_promise` reports as damage.
        path: The file, for messages.

    Raises:
        CheckError: A number is impossible, or a name is listed twice.
    """
    above = fields["above"]  # counts of units and animals above the highest threshold
    best_scoring = fields["known"]  # counts of the best units: looked at, and with an animal seen
    round_sizes = fields["plan"]  # how many units each round looks at below the highest threshold
    round_number = fields["round"]
    losses = fields["asked"]  # the shares of animals that may be lost
    names = fields["animals_below"] + fields["doubtful_below"]
    # Each message, and whether the promise is free of this fault.
    checks = {
        "its seed is not a whole number": type(fields["seed"]) is int,
        "its round is not one of its plan": (
            type(round_number) is int and 1 <= round_number <= len(round_sizes)
        ),
        "its plan has an impossible size": (
            all(type(size) is int and size >= 0 for size in round_sizes)
        ),
        "its probability is not between 0 and 1": 0 < fields["sure"] < 1,
        "its losses are missing, or not between 0 and 1": (
            bool(losses) and all(0 < loss < 1 for loss in losses)
        ),
        "a name is in its lists twice": len(names) == len(set(names)),
        "its counts above the threshold contradict each other": (
            0 <= above["animals"] <= above["looked_at"] <= above["units"]
        ),
        "its bound above the threshold is impossible": 0 <= above["at_least"] <= above["units"],
        "its counts of best-scoring units contradict each other": (
            0 <= best_scoring["seen"] <= best_scoring["looked_at"]
        ),
    }
    for problem, is_possible in checks.items():
        if not is_possible:
            raise CheckError(f"{path} does not hold: {problem}", HINT)


def _require_same_records(fields: Fields, units: Units, records: str, path: Path) -> None:
    """Refuse a promise whose counts of images differ from those in the records.

    Args:
        fields: The promise, as in promise.json.
        units: The images, or groups of images, of the records.
        records: The name of the records.
        path: The file of the promise, for messages.

    Raises:
        CheckError: A number or the hash differs.
    """
    checks = {
        "the number of units": fields["units"] == len(units),
        "the number of failed inputs": fields["failed"] == len(units.failed),
        "the hash of the records": fields["records_sha256"] in {None, file_hash(records)},
    }
    for subject, is_same in checks.items():
        if not is_same:
            raise CheckError(f"{path} does not hold: {subject} is different in {records}", HINT)


def _units_of(fields: Fields, records: str, advance: Callable[[str], object]) -> Units:
    """Read the units that a promise is about."""
    kind = UnitKind.parse(fields["unit"])
    inputs = read_inputs(records, WantedClasses(fields["classes"]), kind, advance)
    units = make_units(inputs, kind, int(fields["seed"]))
    require_unchanged(fields["scores_sha256"], units, records)
    return units


def _draw_of(fields: Fields, units: Units) -> RandomSample:
    """Draw the units again that the review of a promise looked at."""
    return RandomSample(
        units,
        threshold=fields["below"],
        round_sizes=fields["plan"],
        above_limit=fields["above"]["looked_at"],
    )


def _require_asked_before(fields: Fields, units: Units, path: Path) -> None:
    """Check that the thresholds and probabilities of a promise follow from what was asked for.

    Otherwise somebody may have chosen them afterwards, so that the promise looks better.

    Args:
        fields: The promise, as in promise.json.
        units: The images, or groups of images, of the records, with their scores.
        path: The file, for messages.

    Raises:
        CheckError: Something of it does not follow from the scores and from the rules.
    """
    above = fields["above"]  # what was looked at above the highest threshold
    draw = _draw_of(fields, units)
    is_above_sampled = above["looked_at"] < draw.count_above
    seen_share = fields["seen_share"]
    is_corrected = seen_share is not None  # for animals that reviewers overlook
    total_error = 1 - fields["sure"]
    error = split_error(
        total_error,
        loss_count=len(fields["asked"]),
        round_number=fields["round"],
        round_count=len(fields["plan"]),
        further_bound_count=int(is_above_sampled) + int(is_corrected),
    )
    error_of_further_bound = FURTHER_BOUND_SHARE * total_error
    fewest_above = above["animals"]
    if is_above_sampled:
        fewest_above = min_positives(
            above["animals"],
            units=draw.count_above,
            drawn=len(draw.sample_above),
            error=error_of_further_bound,
        )
    expected_seen_share = None
    if is_corrected:
        known_animals = fields["known"]
        expected_seen_share = smallest_share(
            known_animals["seen"],
            trials=known_animals["looked_at"],
            error=error_of_further_bound,
        )
    thresholds = [row["t"] for row in fields["rows"]]
    expected_thresholds = candidate_thresholds(units.scores, fields["below"])
    checks = {
        "its list of thresholds": thresholds == expected_thresholds,
        "its probability of an error": fields["error"] == error,
        "its loss": fields["lost"] is None or fields["lost"] in fields["asked"],
        "the number of units above the threshold": above["units"] == draw.count_above,
        "the bound on the animals above the threshold": above["at_least"] == fewest_above,
        "the share that reviewers see": seen_share == expected_seen_share,
    }
    for subject, is_as_expected in checks.items():
        if not is_as_expected:
            raise CheckError(
                f"{path} does not hold: {subject} does not follow from its other numbers and the "
                "records",
                HINT,
            )


def _recompute_rows(fields: Fields, units: Units) -> list[Row]:
    """Recompute, for each threshold of a promise, how many animals may be lost below it.

    Args:
        fields: The promise, as in promise.json. It names the units below the highest threshold
            in which reviewers saw an animal, or were in doubt.
        units: The units of the records, images or groups of images, with their scores.
    """
    draw = _draw_of(fields, units)
    score_by_name = dict(
        zip(units.names(draw.sample_below), units.scores[draw.sample_below], strict=True)
    )
    looked_at_names = units.names(draw.sample_below_by(fields["round"]))
    looked_at_scores = {name: score_by_name[name] for name in looked_at_names}
    animal_scores = {name: score_by_name[name] for name in fields["animals_below"]}
    doubtful_scores = {name: score_by_name[name] for name in fields["doubtful_below"]}

    rows = []
    for stored_row in fields["rows"]:
        row = _recompute_row(
            fields,
            stored_row["t"],
            units=units,
            looked_at_scores=looked_at_scores,
            animal_scores=animal_scores,
            doubtful_scores=doubtful_scores,
        )
        rows.append(row)
    return rows


def _recompute_row(
    fields: Fields,
    threshold: float,
    *,
    units: Units,
    looked_at_scores: Mapping[str, float],
    animal_scores: Mapping[str, float],
    doubtful_scores: Mapping[str, float],
) -> Row:
    """Recompute how many animals may be lost below one threshold of a promise.

    Below the threshold, animals are lost: those that reviewers saw there, and units that were
    doubtful. The bound rests on the units that were looked at up to the round of the promise. What
    reviewers saw in later rounds is counted as well, but does not change the bound.

    Args:
        fields: The promise, as in promise.json.
        threshold: The threshold.
        units: The units of the records, images or groups of images, with their scores.
        looked_at_scores: The scores of the units that were looked at up to the round of the
            promise, by name; all scores here are below the highest threshold.
        animal_scores: The scores of the units in which an animal was seen in any round, by name.
        doubtful_scores: The scores of the units that are doubtful in any round, by name.
    """
    looked_at_below = _names_below(threshold, looked_at_scores)
    animals_below = _names_below(threshold, animal_scores)
    lost_names = animals_below | _names_below(threshold, doubtful_scores)
    seen_names = animal_scores.keys() - animals_below
    fewest_above = fields["above"]["at_least"]

    row = bound_row(
        threshold,
        units_below=units.count_below(threshold),
        dealt=len(looked_at_below),
        misses=len(lost_names & looked_at_scores.keys()),
        animals_seen=fewest_above + len(seen_names & looked_at_scores.keys()),
        error=fields["error"],
        seen_share=fields["seen_share"],
    )
    return replace(
        row,
        all_misses=len(lost_names),
        all_animals_seen=fewest_above + len(seen_names),
    )


def _names_below(threshold: float, scores: Mapping[str, float]) -> set[str]:
    """Return the names of units with scores below a threshold."""
    return {name for name, score in scores.items() if score < threshold}


def _require_same_rows(fields: Fields, rows: Sequence[Row], path: Path) -> None:
    """Refuse a promise whose rows differ from the recomputed ones.

    Args:
        fields: The promise, as in promise.json.
        rows: The recomputed rows: for each threshold, how many animals may be lost below it.
        path: The file, for messages.

    Raises:
        CheckError: A row differs.
    """
    for row, stored_row in zip(rows, fields["rows"], strict=True):
        if row.to_json() != stored_row:
            raise CheckError(
                f"{path} does not hold: its row at {row.threshold} should be {row.to_json()}", HINT
            )


def _require_promised_row(fields: Fields, rows: Sequence[Row], path: Path) -> Row:
    """Check that the promised threshold follows from the rows, and return the row of it.

    Args:
        fields: The promise, as in promise.json.
        rows: The recomputed rows: for each threshold, how many animals may be lost below it.
        path: The file, for messages.

    Raises:
        CheckError: Nothing is promised, or the threshold or the number of units below it does not
            follow from the rows.
    """
    threshold = fields["t"]
    if threshold is None:
        raise CheckError(f"{path} promises nothing", HINT)
    _require_loss_kept(rows, threshold, fields["lost"], path)

    promised_rows = [row for row in rows if row.threshold == threshold]
    if len(promised_rows) != 1:
        raise CheckError(f"{path} does not hold: {threshold} is not a threshold of its rows", HINT)
    promised_row = promised_rows[0]
    if not promised_row.units_below:
        raise CheckError(f"{path} promises nothing: no unit is below {threshold}", HINT)
    if fields["put_aside"] != promised_row.units_below:
        raise CheckError(
            f"{path} does not hold: {promised_row.units_below:,} units are below {threshold}, and "
            "it puts aside another number",
            HINT,
        )
    return promised_row


def _holds_text(row: Row, *, sureness: float) -> str:
    """State that a promise holds, and what it promises.

    For example "it holds: --conf 0.2, at most 4.9% are lost, 95% sure; 8,000 need no eyes". These
    8,000 units are below the threshold, so nobody has to look at them.

    Args:
        row: The row of the promised threshold: how many animals may be lost below it.
        sureness: The probability with which the promise holds, such as 0.95.
    """
    all_animals = row.max_lost + row.animals_seen
    lost_share_text = loss_text(row.max_lost, all_animals)
    return (
        f"it holds: --conf {row.threshold}, at most {lost_share_text} are lost, "
        f"{sureness_text(sureness)} sure; {row.units_below:,} need no eyes"
    )


def _require_loss_kept(rows: Sequence[Row], threshold: float, loss: float, path: Path) -> None:
    """Refuse a promise if more animals than it says may be lost at its threshold or a lower one.

    The lower thresholds matter as well, since the search for the highest threshold starts at the
    lowest one, and ends where too many animals may be lost.

    Args:
        rows: For each threshold, how many animals may be lost below it.
        threshold: The promised threshold.
        loss: The promised share of animals that may be lost, such as 0.05.
        path: The file of the promise, for messages.

    Raises:
        CheckError: More animals may be lost.
    """
    for row in rows:
        if row.threshold > threshold:
            continue
        if not row.keeps(loss):
            lost_share = loss_text(row.max_lost, row.max_lost + row.animals_seen)
            raise CheckError(
                f"{path} does not hold: below {row.threshold}, {lost_share} may be lost, and "
                f"{row.all_misses:,} were seen",
                HINT,
            )
