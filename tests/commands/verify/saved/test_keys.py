import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from detcli.commands.verify.saved.keys import DEPTHS, InputNames, Keying, choose_keying

parts = st.lists(st.sampled_from(["a", "b", "c", "x.jpg", "é", ""]), min_size=1, max_size=12)
sources = st.lists(st.tuples(parts.map("/".join), st.none() | st.integers(0, 2)), max_size=8)


def named(rows):
    names = InputNames()
    for source, frame in rows:
        names.add(record(source, frame))
    return names


def record(source, frame=None):
    return {"source": source} | ({} if frame is None else {"frame": frame})


@given(sources, sources)
@example([("a/" * 12 + "x", None)], [("b/x", None)])
def test_keys_of_records_are_those_of_their_run(left, right):
    """Whichever way of comparing names is chosen."""
    runs = named(left), named(right)
    ways = [choose_keying(*runs), Keying(skipped=(runs[0].common, runs[1].common))]
    ways += [Keying(), *(Keying(last=depth) for depth in range(1, DEPTHS + 1))]
    for way in ways:
        for side, rows in enumerate((left, right)):
            keys = {way.key(side, record(*row)) for row in rows}
            assert keys == {*runs[side].keys(way, side).tolist()}


@given(sources)
def test_a_run_matches_itself(rows):
    names = named(rows)
    keying = choose_keying(names, names)
    assert len(names.keys(keying, 0)) == len(np.unique(names.keys(Keying(), 0)))


def test_equal_names_come_first():
    rows = [("a/x.jpg", None), ("b/x.jpg", None)]
    assert choose_keying(named(rows), named(rows[::-1])) == Keying()


def test_empty_runs():
    assert choose_keying(named([]), named([])) == Keying()
