import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detcli.core.errors import SourceError
from detcli.core.record import Origin
from detcli.run.shards.manifest import (
    Names,
    Unusable,
    from_json,
    hash_of,
    only,
    source_of,
    to_entry,
    to_json,
)
from detcli.source.loading import Item, failed


@settings(max_examples=40)  # each writes files
@example(["\x97\x14Ð"])  # whose hash ends with a zero
@given(st.lists(st.text(max_size=3)))
def test_each_name_is_there_once_in_the_order_of_the_source(given_names):
    with Names(iter(given_names)) as names:
        assert [*names] == [*names] == [*dict.fromkeys(given_names)]
        assert len(names) == len(set(given_names))
        assert names.repeated == len(given_names) - len(names)
        assert (np.sort(names.hashes) == names.hashes).all()
        wanted = {*given_names[::2]}
        hashes = np.unique(np.array([hash_of(name) for name in wanted], "S16"))
        assert {*only(names, hashes)} == wanted


@pytest.mark.parametrize("name", ["a.jpg", "ä\n.jpg", "\udcff.jpg", "", Unusable("x", "gone", "")])
def test_a_name_survives_json(name):
    assert from_json(to_json(name)) == name


def test_a_failure_keeps_its_place():
    entries = ["a.jpg", failed("pics", SourceError("cannot list it", "check")), "b.jpg"]
    with Names(entries) as names:
        assert [*names] == ["a.jpg", Unusable("pics", "cannot list it", "check"), "b.jpg"]
        _, failure, _ = map(to_entry, names)
    with pytest.raises(SourceError, match="cannot list it") as caught:
        failure.load()
    assert caught.value.hint == "check"
    assert source_of(Unusable("pics", "", "")) == "pics"


def test_an_item_that_is_no_failure_is_a_bug():
    with pytest.raises(TypeError):
        Names([Item(Origin("a.jpg"), lambda: None)])
