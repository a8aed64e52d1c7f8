from comparisons import compared

from detcli.commands.eval.confusion import confusions

A, B, C = ((x, 10.0, 20.0, 20.0) for x in (0.0, 30.0, 60.0))


def test_what_was_taken_for_what():
    pictures = [
        compared(1, [(A, 0, {}), (B, 1, {}), (C, 1, {})], [(A, 0, 0.9), (B, 0, 0.8), (A, 1, 0.7)]),
        compared(2, [], [(C, 1, 0.6), (C, 1, 0.2)]),
    ]
    assert confusions(pictures, [0, 1], 0.5) == {
        (0, 0): 1,  # A
        (1, 0): 1,  # B
        (1, None): 1,  # C
        (None, 1): 2,  # once more on A, where 0 scored better; and on nothing
    }


def test_crowds_and_what_is_ignored_do_not_count():
    labels = [(A, 0, {"crowd": True}), (B, 0, {"ignored": True})]
    assert confusions([compared(1, labels, [(A, 1, 0.9), (B, 1, 0.9)])], [0, 1], 0.5) == {}


def test_all_detections_of_a_picture_are_looked_at():
    many = [(A, 0, 0.9)] * 150
    assert confusions([compared(1, [(A, 0, {})], many)], [0], 0.5) == {(0, 0): 1, (None, 0): 149}


def test_nothing_found_above_the_confidence():
    pictures = [compared(1, [(A, 0, {})], [(A, 0, 0.5)]), compared(2, [], [])]
    assert confusions(pictures, [0], 0.5) == {(0, None): 1}
    assert confusions([], [0], 0.5) == {}
