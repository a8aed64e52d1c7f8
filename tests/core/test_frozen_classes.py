"""Classes that never change behave as the dataclasses of Python do."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from detcli.core import frozen


class Compared:
    """The fields of both classes, with each way in which a field may be left out."""

    name: str
    score: float = 0.5
    note: str = field(default="", compare=False)
    secret: str = field(default="", repr=False)
    tags: tuple[str, ...] = field(default=(), hash=False)


Expected = dataclass(frozen=True, slots=True)(type("Box", (), dict(vars(Compared))))
Box = frozen(type("Box", (), dict(vars(Compared))))


@frozen
class Point:
    """A class that can be pickled, with one field."""

    x: float


@frozen
class Nothing:
    """A class without fields."""


VALUES = [
    {"name": "a"},
    {"name": "b"},
    {"name": "a", "score": 0.25},
    {"name": "a", "note": "n"},
    {"name": "a", "secret": "s"},
    {"name": "a", "tags": ("t",)},
]

NAN = {"name": "a", "score": float("nan")}
"""Not compared: since Python 3.13, a dataclass with a NaN no longer equals itself."""


@pytest.mark.parametrize("values", VALUES + [NAN])
def test_the_representation(values):
    assert repr(Box(**values)) == repr(Expected(**values))


@pytest.mark.parametrize("values", VALUES + [NAN])
def test_the_hash(values):
    assert hash(Box(**values)) == hash(Expected(**values))


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("right_values", VALUES)
def test_what_is_equal(values, right_values):
    is_equal = Expected(**values) == Expected(**right_values)
    assert (Box(**values) == Box(**right_values)) is is_equal
    assert (Box(**values) != Box(**right_values)) is not is_equal


def test_another_class_is_not_equal():
    assert Box(name="a") != Expected(name="a")
    assert Point(1) != (1,)


def test_one_field_and_none():
    assert Point(1.0) == Point(1)
    assert hash(Point(1.0)) == hash((1.0,))
    assert repr(Point(1.0)) == "Point(x=1.0)"
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(())
    assert repr(Nothing()) == "Nothing()"


def test_it_never_changes():
    point = Point(1.0)
    with pytest.raises(FrozenInstanceError):
        point.x = 2.0
    with pytest.raises(FrozenInstanceError):
        del point.x


def test_copies():
    point = Point(1.0)
    assert pickle.loads(pickle.dumps(point)) == point  # noqa: S301
    assert copy.deepcopy(point) == point
    assert replace(point, x=2.0) == Point(2.0)


def test_methods_of_a_class_stay():
    @frozen
    class Name:
        text: str

        def __repr__(self) -> str:
            return self.text

        def __eq__(self, right: object) -> bool:
            return isinstance(right, Name) and self.text.lower() == right.text.lower()

        def __hash__(self) -> int:
            return hash(self.text.lower())

    assert repr(Name("A")) == "A"
    assert Name("A") == Name("a")
    assert hash(Name("A")) == hash("a")


def test_a_class_that_contains_itself_is_represented():
    nested: list[object] = []
    point = Box(name=nested)
    nested.append(point)
    assert repr(point) == "Box(name=[...], score=0.5, note='', tags=())"
