"""promise.json: what was promised, with all numbers that it was computed from."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli import __version__
from detcli.commands.promise.deck import Deck
from detcli.commands.promise.draw import RandomSample
from detcli.commands.promise.evaluation import AnswersByUnit, Promise, RoundResult
from detcli.commands.promise.labels import Answer
from detcli.commands.promise.statements import Reliability
from detcli.commands.promise.units import Units
from detcli.core import Fields
from detcli.core.errors import UsageError
from detcli.storage.files import read_json, write_file

if TYPE_CHECKING:
    from collections.abc import Mapping

PROMISE = "promise.json"

VERSION = 1

NEEDED_FIELDS = frozenset(
    {
        "v",
        "t",
        "lost",
        "sure",
        "rows",
        "seed",
        "plan",
        "round",
        "error",
        "scores_sha256",
        "below",
        "classes",
        "unit",
        "above",
        "animals_below",
        "doubtful_below",
        "seen_share",
        "asked",
        "known",
    }
)
"""The fields without which a promise cannot be verified."""


def promise_fields(
    deck: Deck,
    units: Units,
    answers: AnswersByUnit,
    result: RoundResult,
    promise: Promise | None,
    reliability: Reliability,
    seen_share: float | None,
) -> Fields:
    """Return what promise.json says, but for who answered.

    Args:
        deck: What was dealt.
        units: All units.
        answers: The answers to what was dealt.
        result: The round that promises most, or the last complete one.
        promise: What is promised; None for nothing.
        reliability: How reliable the reviewers were.
        seen_share: At least this share of the animals is seen by the reviewers, by which the bounds
            are corrected; None where they are not.
    """
    draw = RandomSample.of(deck, units)
    names = units.names(draw.sample_below)
    promised: Mapping[str, Any] = {"t": None, "lost": None, "put_aside": 0}
    if promise is not None:
        promised = {
            "t": promise.row.threshold,
            "lost": promise.loss,
            "put_aside": promise.row.units_below,
        }
    return {
        "v": VERSION,
        "detcli": __version__,
        "sure": deck.sureness,
        **promised,
        "asked": deck.losses,
        "classes": deck.classes,
        "unit": deck.unit_option,
        "units": deck.unit_count,
        "failed": deck.failed_count,
        "records_sha256": deck.records_sha256,
        "scores_sha256": deck.scores_sha256,
        "model": deck.model,
        "model_sha256": deck.model_sha256,
        "seed": deck.seed,
        "below": deck.highest_threshold,
        "plan": deck.round_sizes,
        "round": result.round,
        "error": result.error,
        "seen_share": seen_share,
        "shortened": deck.shortened_units,
        "above": asdict(result.above),
        "animals_below": [name for name in names if answers.get(name) is Answer.ANIMAL],
        "doubtful_below": [name for name in names if answers.get(name) is Answer.DOUBTFUL],
        "rows": [row.to_json() for row in result.rows],
        "repeats": {"answered": reliability.repeat_count, "changed": reliability.changed_count},
        "known": {"looked_at": reliability.known_count, "seen": reliability.known_seen_count},
    }


def write_promise(path: Path, fields: Fields) -> None:
    """Write promise.json."""
    write_file(path, (json.dumps(fields, indent=1) + "\n").encode())


def read_promise(path: Path) -> Fields:
    """Read the promise of a review from promise.json, whose fields docs/promise.md explains.

    Raises:
        UsageError: It cannot be read, or is something else.
    """
    fields = read_json(path, _unusable)
    if not isinstance(fields, dict) or not fields.keys() >= NEEDED_FIELDS:
        raise _unusable(path, "it is not a promise of this version of detcli")
    if fields["v"] != VERSION:
        raise _unusable(path, "it is not a promise of this version of detcli")
    threshold = fields["t"]
    if threshold is not None and type(threshold) is not float:
        raise _unusable(path, "its threshold is not a number")
    return fields


def _unusable(path: Path, reason: str) -> UsageError:
    """Make the error for a promise that cannot be read."""
    return UsageError(
        f"cannot read {path}: {reason}",
        "detcli promise check writes promise.json into the review, after a complete round",
    )
