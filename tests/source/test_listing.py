import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detcli.core.errors import SourceError
from detcli.data.record import Origin
from detcli.source.listing import (
    Names,
    Unusable,
    hash_of,
    source_of,
    to_entry,
)
from detcli.source.loading import Item, failed_item


@settings(max_examples=40)  # each writes files
@given(st.lists(st.text(max_size=3)))
@example([str(number) for number in range(2000)] * 2)  # some have a hash that ends in NUL
def test_each_name_is_there_once_in_the_order_of_the_source(given_names):
    with Names(iter(given_names)) as names:
        assert list(names) == list(names) == list(dict.fromkeys(given_names))
        assert len(names) == len(set(given_names))
        assert names.repeated == len(given_names) - len(names)
        assert (np.sort(names.hashes) == names.hashes).all()
        selected = set(given_names[::2])
        hashes = np.unique(np.array([hash_of(name) for name in selected], "S16"))
        assert set(names.only(hashes, names)) == selected


def test_a_failure_keeps_its_place():
    entries = ["a.jpg", failed_item("pics", SourceError("cannot list it", "check")), "b.jpg"]
    with Names(entries) as names:  # type: ignore[arg-type]
        assert list(names) == ["a.jpg", Unusable("pics", "cannot list it", "check"), "b.jpg"]
        _, failure, _ = map(to_entry, names)
    with pytest.raises(SourceError, match="cannot list it") as caught:
        failure.load()  # type: ignore[union-attr]
    assert caught.value.hint == "check"
    assert source_of(Unusable("pics", "", "")) == "pics"
    with pytest.raises(TypeError):  # a bug
        Names([Item(Origin("a.jpg"), lambda: None)])
