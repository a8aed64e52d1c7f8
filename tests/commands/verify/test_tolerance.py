import pytest

from detcli.commands.verify.tolerance import EXACT, REDUCED, Precision, Tolerance, tolerance_for
from detcli.errors import UsageError

F32, F16, I8 = Precision.FLOAT32, Precision.FLOAT16, Precision.INT8


def test_the_defaults_go_by_the_lower_precision():
    assert tolerance_for({F32}, {}) == EXACT
    assert tolerance_for({F32, F16}, {}) == REDUCED
    assert tolerance_for({F16}, {}) == REDUCED
    assert tolerance_for({F32, I8}, {}) == REDUCED


def test_what_is_asked_for_replaces_its_default_only():
    assert tolerance_for({F32}, {"corner": 5.0}) == Tolerance(0.001, 5.0, 0.0, 0.001)


@pytest.mark.parametrize(
    "wanted", [{"score": -0.1}, {"boxes": 1.1}, {"corner": float("nan")}, {"tensor": float("inf")}]
)
def test_values_out_of_range(wanted):
    with pytest.raises(UsageError, match=next(iter(wanted))):
        tolerance_for({F32}, wanted)
