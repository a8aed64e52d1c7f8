"""A sample has its share of each score, and is the same for the same seed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from json_lines import column_of
from saved_records import error
from saved_records import record as saved_record

from detcli.data.sampling import EMPTY, ERRORS, StratifiedSample, stratum_of

SCORES = st.lists(st.none() | st.just("error") | st.floats(0, 1), max_size=60)


def record(number, score):
    """A record, and its best score, which is None without detections."""
    if score == "error":
        return error(f"{number}.jpg"), None
    return saved_record(f"{number}.jpg"), score


def sample(scores, size, seed=0, order=None):
    """The numbers of the records in a sample."""
    stratified_sample = StratifiedSample(size, seed)
    for number in order or range(len(scores)):
        fields, best_score = record(number, scores[number])
        stratified_sample.add(fields, best_score)
    assert stratified_sample.record_count == len(scores)
    names = column_of(stratified_sample.records(), "source")
    return [int(name.removesuffix(".jpg")) for name in names]


def plain_shares(sizes, size):
    """How many of each stratum are in a sample: one in turn while there are some."""
    shares = Counter()
    rest = size
    while rest and shares.total() < sum(sizes.values()):
        remaining = [stratum for stratum in sizes if shares[stratum] < sizes[stratum]]
        if rest < len(remaining):
            break
        for stratum in remaining:
            shares[stratum] += 1
            rest -= 1
    return shares, rest


@given(SCORES, st.integers(1, 40))
def test_strata_have_equal_shares(scores, size):
    numbers = sample(scores, size)
    strata = []
    for number, score in enumerate(scores):
        fields, best_score = record(number, score)
        strata.append(stratum_of(fields, best_score))
    shares, rest = plain_shares(Counter(strata), size)
    drawn = Counter([strata[number] for number in numbers])
    assert len(numbers) == min(size, len(scores))
    assert numbers == sorted(set(numbers))
    for stratum, share in shares.items():
        assert drawn[stratum] >= share
    assert drawn.total() - shares.total() <= rest


@given(SCORES, st.integers(1, 40), st.randoms())
def test_the_order_of_records_does_not_matter(scores, size, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    assert sorted(sample(scores, size, order=order)) == sample(scores, size)


def test_strata_of_equal_size_have_their_rest_in_a_fixed_order():
    assert sample([0.5, None], 1) == sample([0.5, None], 1, order=[1, 0])


def test_another_seed_gives_another_sample():
    scores = [0.5] * 100
    assert sample(scores, 10, seed=1) == sample(scores, 10, seed=1)
    assert sample(scores, 10, seed=1) != sample(scores, 10, seed=2)


def test_each_record_of_a_stratum_has_the_same_chance():
    counts = Counter()
    for seed in range(2000):
        counts.update(sample([0.5] * 10, 2, seed=seed))
    assert len(counts) == 10
    for count in counts.values():
        assert 340 < count < 460


def test_frames_of_a_video_are_drawn_apart():
    stratified_sample = StratifiedSample(5, 0)
    for frame in range(50):
        stratified_sample.add(saved_record("a.mp4", frame=frame), None)
    assert len(set(column_of(stratified_sample.records(), "frame"))) == 5


def test_the_strata():
    empty = saved_record("a.jpg")
    assert stratum_of(error("a.jpg"), None) == ERRORS
    assert stratum_of(empty, None) == EMPTY
    assert stratum_of(empty, 0.0) == 0
    assert stratum_of(empty, 0.1) == 1
    assert stratum_of(empty, 1.0) == 9
