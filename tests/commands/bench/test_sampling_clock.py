"""The stages' clock, which accounts for every nanosecond."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.bench.sampling import StageClock, clock_cost
from detcli.core.timing import Stage


def test_the_time_since_the_last_call_belongs_to_the_stage():
    clock = StageClock(iter([100, 130, 170, 175, 200, 300, 310]).__next__)
    clock.start()
    clock.ended(Stage.DECODE)
    clock.ended(Stage.NETWORK)
    clock.ended(Stage.DECODE)
    clock.stop()
    assert clock.stages == {Stage.DECODE: 35, Stage.NETWORK: 40, Stage.REMAINDER: 25}
    assert clock.wall == 100
    assert clock.calls == 4
    clock.start()
    clock.stop()
    assert (clock.stages, clock.wall, clock.calls) == ({Stage.REMAINDER: 10}, 10, 1)


@given(
    st.lists(st.tuples(st.sampled_from(Stage), st.integers(0, 10**12)), max_size=20),
    st.integers(0, 10**12),
)
def test_the_stages_sum_to_the_wall_clock_exactly(told, last):
    steps = [0, *(step for _, step in told), last]
    clock = StageClock(itertools.accumulate(steps).__next__)
    clock.start()
    for stage, _ in told:
        clock.ended(stage)
    clock.stop()
    assert sum(clock.stages.values()) == clock.wall == sum(steps)


def test_its_own_cost_grows_with_the_calls():
    assert 0 < clock_cost(1) < clock_cost(100)
