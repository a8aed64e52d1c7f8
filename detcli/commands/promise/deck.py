"""deck.json: what was asked for and drawn, written once before anything is looked at."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin

from detcli.commands.promise.plan import round_error
from detcli.commands.promise.unit_kind import UnitKind
from detcli.core import Fields, frozen
from detcli.core.errors import UsageError
from detcli.storage.files import read_json, write_file

DECK = "deck.json"
DEAL = "deal.txt"
DISPUTED = "disputed"  # the folder with the page of what was answered differently

VERSION = 1

ALL = "all"
"""Every unit above the highest threshold is looked at, and not a sample of them."""

REVIEW_ID_CHARS = 16
"""How much of the hash of a deck tells its review from others."""

JSON_KEYS = {
    "version": "v",
    "detcli_version": "detcli",
    "unit_count": "units",
    "failed_count": "failed",
    "unit_option": "unit",
    "highest_threshold": "below",
    "losses": "lost",
    "sureness": "sure",
    "expected_share": "expect",
    "round_sizes": "plan",
    "thresholds": "grid",
    "sample_above": "above",
    "repeated_units": "repeat",
    "best_scoring_units": "known",
    "missing_units": "gone",
    "shortened_units": "shortened",
}
"""The keys in deck.json of those attributes of a deck that have different names there."""

FURTHER_BOUND_SHARE = 0.1
"""The share of the probability of a false promise that each additional bound takes."""


@frozen
class Deck:
    """What a review was asked for, and what was drawn for it: the contents of deck.json."""

    version: int  # of the file
    detcli_version: str
    records: str  # the absolute path of the records when they were dealt
    records_sha256: str | None  # of the file; null for the folder of a run in shards
    scores_sha256: str  # of the names and scores of all units
    model: str
    model_sha256: str | None  # null if the records do not say it
    settings: Fields  # of the run that made the records; empty if they do not say it
    unit_count: int  # without those that failed
    failed_count: int  # inputs with an error, which are always to be looked at
    classes: list[str]  # classes to look for; empty for all
    unit_option: str  # what a unit is, in the words of --unit, such as "image"
    highest_threshold: float  # no promised threshold is above this
    units_below: int  # how many have lower scores than the highest threshold
    losses: list[float]  # shares of the animals that may be lost, the smallest first
    sureness: float  # the probability with which the promise holds, such as 0.95
    expected_share: float  # share of units that was expected to show an animal; for the plan only
    round_sizes: list[int]  # how many of the units below are looked at in each round
    thresholds: list[float]  # scores that may be promised, the lowest first
    seed: int  # decides the draw, with the names of the units
    sample_above: int | str  # how many units above are looked at, or "all"
    repeated_units: list[str]  # units that are looked at twice
    best_scoring_units: list[str]  # looked at, as they most probably show an animal
    missing_units: list[str]  # their images were not found by deal, or had changed
    shortened_units: list[str]  # the page shows only some images of these

    @classmethod
    def from_json(cls, value: Any, name: str) -> Self:  # noqa: ANN401 - JSON
        """Check that a value read from JSON is a deck.

        Args:
            value: The value.
            name: What to call its file in a message.

        Raises:
            UsageError: It is not, or was written by another version.
        """
        keys = {_json_key(field.name) for field in fields(cls)}
        if not isinstance(value, dict) or not keys <= value.keys():
            raise UsageError(
                f"{name} is not a deck of detcli promise", "name a folder that promise deal wrote"
            )
        attributes = {}
        for field in fields(cls):
            key = _json_key(field.name)
            if not _is_of_type(value[key], field.type):
                raise UsageError(f"{name}: its {key} is damaged", "deal anew")
            attributes[field.name] = value[key]
        if attributes["version"] != VERSION:
            raise UsageError(
                f"{name} has version {attributes['version']}, and this detcli reads {VERSION}",
                "deal anew",
            )
        return cls(**attributes)

    @property
    def kind(self) -> UnitKind:
        """What a unit is."""
        return UnitKind.parse(self.unit_option)

    @property
    def error(self) -> float:
        """The probability with which a promise may be false."""
        return 1 - self.sureness

    def is_above_sampled(self, units_above: int) -> bool:
        """Return whether only a part of the units above is looked at.

        Args:
            units_above: How many there are.
        """
        return self.sample_above != ALL and int(self.sample_above) < units_above

    def error_of_round(
        self, round_number: int, *, is_above_sampled: bool, is_corrected: bool
    ) -> float:
        """Return the probability with which a round's bounds may be wrong, see `split_error`."""
        return split_error(
            self.error,
            loss_count=len(self.losses),
            round_number=round_number,
            round_count=len(self.round_sizes),
            further_bound_count=int(is_above_sampled) + int(is_corrected),
        )


def _is_of_type(value: Any, annotation: Any) -> bool:  # noqa: ANN401 - JSON, and any type
    """Return whether a value read from JSON has the given type; a list does if all of its items do.

    Args:
        value: The value.
        annotation: A type such as `int`, `list[str]` or `str | None`.
    """
    if isinstance(annotation, UnionType):
        return any(_is_of_type(value, alternative) for alternative in get_args(annotation))
    expected_type = get_origin(annotation) or annotation
    if expected_type is float:
        return type(value) in {int, float}
    if type(value) is not expected_type:
        return False
    if expected_type is list:
        (item_type,) = get_args(annotation)
        return all(_is_of_type(item, item_type) for item in value)
    return True


def split_error(
    total_error: float,
    *,
    loss_count: int,
    round_number: int,
    round_count: int,
    further_bound_count: int,
) -> float:
    """Return the probability of an error that one round may have for one of the losses asked for.

    A promise is false if any of its bounds is wrong, so all bounds share the probability of a false
    promise. A bound that does not belong to a single round gets a tenth of it. The losses get equal
    parts of the rest. The first round gets half of the part of a loss, the second a quarter, and so
    on; a single round gets all of it.

    For example, with 5% for two losses and three rounds, and no additional bound, each loss has
    2.5%, and its rounds 1.25%, 0.625% and 0.3125%.

    Args:
        total_error: The probability with which the promise may be false, such as 0.05.
        loss_count: How many losses were asked for: 2 for `--lost 5%,10%`.
        round_number: The number of the round, from 1.
        round_count: How many rounds there are at most.
        further_bound_count: How many bounds take a tenth: one if the animals above the highest
            threshold are only sampled, and one if what reviewers overlook is corrected for.
    """
    error_of_rounds = total_error * (1 - FURTHER_BOUND_SHARE * further_bound_count)
    error_of_loss = error_of_rounds / loss_count
    return round_error(error_of_loss, round_number, round_count)


def write_deck(folder: Path, deck: Deck, dealt_names: Sequence[str]) -> None:
    """Write the deck of a review, and the names of the units below in the order of the draw."""
    write_file(folder / DEAL, "".join(f"{json.dumps(name)}\n" for name in dealt_names).encode())
    write_file(folder / DECK, _json_text(deck).encode())


def review_id_of(deck: Deck) -> str:
    """Return what tells the review of a deck from others, and from one whose deck was changed.

    It is the beginning of the SHA-256 of deck.json as deal wrote it.
    """
    return hashlib.sha256(_json_text(deck).encode()).hexdigest()[:REVIEW_ID_CHARS]


def _json_key(attribute: str) -> str:
    """Return the key in deck.json that holds an attribute of a deck."""
    return JSON_KEYS.get(attribute, attribute)


def _json_text(deck: Deck) -> str:
    """Encode a deck as JSON."""
    values_by_key = {}
    for attribute, value in asdict(deck).items():
        values_by_key[_json_key(attribute)] = value
    return json.dumps(values_by_key, indent=1) + "\n"


def read_deck(folder: Path) -> Deck:
    """Read the deck of a review.

    Raises:
        UsageError: The folder has none, or it is damaged.
    """
    path = folder / DECK
    return Deck.from_json(read_json(path, unusable_file), str(path))


def unusable_file(path: Path, reason: str) -> UsageError:
    """Make the error for a file of a review that cannot be read."""
    return UsageError(f"cannot read {path}: {reason}", "name a folder that promise deal wrote")
