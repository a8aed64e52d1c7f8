import pytest

from detcli.commands.verify.tolerance import parse_tolerance
from detcli.errors import UsageError

KNOWN = ("score", "corner", "boxes")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (None, {}),
        ("score=0.02", {"score": 0.02}),
        (" corner = 2 , boxes=1.5% ", {"corner": 2, "boxes": 0.015}),
        ("score=1e-3,", {"score": 0.001}),
    ],
)
def test_what_is_understood(text, values):
    assert parse_tolerance(text, KNOWN) == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "says nothing"),
        (",", "says nothing"),
        ("score", "'score' is no tolerance"),
        ("score=", "'score=' is no tolerance"),
        ("score=many", "'score=many' is no tolerance"),
        ("speed=1", "'speed' is none"),
        ("0.1", "'' is none|'0.1' is no tolerance"),
        ("score=1,score=2", "'score' comes twice"),
    ],
)
def test_what_is_not(text, says):
    with pytest.raises(UsageError, match=says) as raised:
        parse_tolerance(text, KNOWN)
    assert "score, corner, boxes" in raised.value.hint
