"""Classes that never change behave as the dataclasses of Python do."""

import copy
import inspect
import pickle
from dataclasses import (
    KW_ONLY,
    FrozenInstanceError,
    asdict,
    astuple,
    dataclass,
    field,
    fields,
    replace,
)
from typing import Any, get_type_hints

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


class Declared:
    """A class with fields of each kind, and a step after they are set."""

    count: int
    parts: list[int] = field(default_factory=list)
    _: KW_ONLY
    title: "str" = "none"
    needed: float
    doubled: int = field(init=False)
    level: int = field(init=False, default=3)
    notes: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "doubled", 2 * self.count)


ExpectedFields = dataclass(frozen=True, slots=True)(type("Fields", (), dict(vars(Declared))))
FrozenFields = frozen(type("Fields", (), dict(vars(Declared))))

ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {"needed": 0.5}),
    ((1, [2, 3]), {"needed": 0.5, "title": "a"}),
    ((), {"count": 2, "needed": 1.5, "parts": []}),
]


@pytest.mark.parametrize(("values", "values_by_name"), ARGUMENTS)
def test_fields_are_set_as_in_a_dataclass(values, values_by_name):
    expected = ExpectedFields(*values, **values_by_name)
    frozen_fields = FrozenFields(*values, **values_by_name)
    assert asdict(frozen_fields) == asdict(expected)
    assert astuple(frozen_fields) == astuple(expected)
    assert repr(frozen_fields) == repr(expected)


def test_each_object_has_its_own_default_list():
    first, second = FrozenFields(1, needed=0.5), FrozenFields(1, needed=0.5)
    first.parts.append(1)
    first.notes["a"] = 1
    assert (second.parts, second.notes) == ([], {})


@pytest.mark.parametrize("arguments", [{}, {"count": 1}, {"count": 1, "needed": 2, "other": 3}])
def test_wrong_arguments_are_refused_alike(arguments):
    with pytest.raises(TypeError) as expected:
        ExpectedFields(**arguments)
    with pytest.raises(TypeError) as refused:
        FrozenFields(**arguments)
    assert str(refused.value) == str(expected.value)


def test_what_is_shown_of_a_class_before_its_first_object():
    frozen_class = frozen(type("Fields", (), dict(vars(Declared))))
    signature = inspect.signature(frozen_class)
    assert str(signature) == str(inspect.signature(ExpectedFields))
    assert get_type_hints(frozen_class.__init__) == get_type_hints(ExpectedFields.__init__)
    assert frozen_class.__match_args__ == ExpectedFields.__match_args__
    names = [class_field.name for class_field in fields(frozen_class)]
    assert names == [class_field.name for class_field in fields(ExpectedFields)]
    assert frozen_class.__setattr__.__qualname__ == "Fields.__setattr__"


@frozen
class PlanePoint(Point):
    """A class whose base never changes either."""

    y: float = 0.0


def test_a_class_that_extends_another():
    point = PlanePoint(1.0, 2.0)
    assert repr(point) == "PlanePoint(x=1.0, y=2.0)"
    assert point != Point(1.0)
    assert pickle.loads(pickle.dumps(point)) == point  # noqa: S301
    for name in ("x", "y"):
        with pytest.raises(FrozenInstanceError):
            setattr(point, name, 3.0)


def test_a_frozen_dataclass_may_extend_it():
    @dataclass(frozen=True)
    class NamedPoint(Point):
        name: str = ""

    point = NamedPoint(1.0, "a")
    assert repr(copy.copy(point)).endswith("NamedPoint(x=1.0, name='a')")
    assert copy.deepcopy(point) == point


def test_a_dataclass_that_changes_may_not_extend_it():
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclass
        class NamedPoint(Point):
            name: str = ""


def test_a_plain_class_that_extends_it_has_attributes_of_its_own():
    class NamedPoint(Point):
        pass

    point = NamedPoint(1.0)
    point.name = "a"  # type: ignore[attr-defined]
    assert point.name == "a"  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        point.x = 2.0


@frozen(eq=False)
class Identified:
    """A class whose objects equal only themselves."""

    x: float


def test_objects_without_comparison_equal_only_themselves():
    identified = Identified(1.0)
    assert identified == identified  # noqa: PLR0124
    assert identified != Identified(1.0)
    assert len({identified, Identified(1.0)}) == 2


def test_methods_for_copies_and_changes_of_a_class_stay():
    @frozen
    class Cached:
        text: str

        def __getstate__(self) -> list[str]:
            return [self.text.upper()]

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    assert copy.copy(Cached("a")).text == "A"
    with pytest.raises(AttributeError, match=r"^text$"):
        Cached("a").text = "b"
