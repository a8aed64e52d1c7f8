"""Times of photographs as text, there and back."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.data.capture_time import from_text, to_text


@given(st.datetimes())
def test_a_time_is_read_back_as_it_was(time):
    assert from_text(to_text(time)) == time


@given(st.datetimes(), st.datetimes())
def test_texts_are_in_the_order_of_the_times(first, second):
    assert (to_text(first) < to_text(second)) == (first < second)


@pytest.mark.parametrize("text", ["", "noon", "2021:05:06 07:08:09", "0000-00-00T00:00:00"])
def test_what_is_no_time_is_none(text):
    assert from_text(text) is None


def test_a_zone_that_others_added_is_left_out():
    assert from_text("2021-05-06T07:08:09+02:00") == datetime(2021, 5, 6, 7, 8, 9)  # noqa: DTZ001
