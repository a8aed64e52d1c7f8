"""Which interpretations of a model are tried."""

import pytest

from detcli.commands.inspect.interpretations import (
    OWN,
    ROUNDS,
    TRIABLE,
    VALUES,
    Interpretation,
    candidates,
    open_parts,
    option_text,
    parse_parts,
)
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat, Preprocessing, Resize
from detcli.model.preprocessing import change
from detcli.model.resolve_preprocessing import FAMILY

BASE = Interpretation(Preprocessing(), BoxFormat.XYXY, {})


def test_rounds_hold_each_part_once():
    assert sorted(part for members in ROUNDS for part in members) == sorted(TRIABLE)


@pytest.mark.parametrize("part", TRIABLE)
def test_all_candidates_for_a_part_are_different_and_the_base_is_the_first(part):
    found = candidates(BASE, [part])
    assert found[0] == Interpretation(BASE.preprocessing, BASE.box_format, found[0].names)
    assert len({(one.preprocessing, one.box_format) for one in found}) == len(found) > 1
    assert len({one.names[part] for one in found}) == len(found)


def test_parts_are_combined():
    found = candidates(BASE, ["values", "channels", "boxes"])
    assert len(found) == len(VALUES) * 2 * 2
    assert len({(one.preprocessing, one.box_format) for one in found}) == len(found)


def test_mean_and_std_belong_to_colours_not_to_places():
    found = candidates(BASE, ["values", "channels"])
    imagenet = {
        one.names["channels"]: one.preprocessing
        for one in found
        if one.names["values"] == "ImageNet's mean and std"
    }
    assert imagenet["rgb"].mean == (0.485, 0.456, 0.406)
    assert imagenet["bgr"].mean == (0.406, 0.456, 0.485)
    assert imagenet["bgr"].std == (0.225, 0.224, 0.229)
    own = Interpretation(
        change(Preprocessing(), "bgr,mean=0.1:0.2:0.3,std=0.4:0.5:0.6"), BoxFormat.XYXY, {}
    )
    (bgr, rgb) = candidates(own, ["channels"])
    assert bgr.preprocessing == own.preprocessing
    assert rgb.preprocessing.mean == (0.3, 0.2, 0.1)
    assert rgb.preprocessing.std == (0.6, 0.5, 0.4)


def test_values_that_are_none_of_the_usual_are_tried_too():
    own = Interpretation(change(Preprocessing(), "mean=0.1:0.2:0.3"), BoxFormat.XYXY, {})
    found = candidates(own, ["values"])
    assert found[0].names == {"values": OWN}
    assert found[0].preprocessing == own.preprocessing
    assert len(found) == len(VALUES) + 1


def test_another_way_of_resizing_drops_what_belonged_to_its_own():
    own = Interpretation(
        change(Preprocessing(), "shortest-edge=800:1333,multiple=32"), BoxFormat.XYXY, {}
    )
    first, *others = candidates(own, ["resize"])
    assert first.preprocessing == own.preprocessing
    assert [one.preprocessing.resize for one in others] == ["letterbox", "corner", "stretch"]
    assert {(one.preprocessing.edges, one.preprocessing.multiple) for one in others} == {(None, 1)}


@pytest.mark.parametrize("part", ["values", "channels", "resize"])
def test_the_option_text_of_a_candidate_makes_it(part):
    for one in candidates(BASE, [part]):
        assert change(Preprocessing(), option_text(part, one)) == one.preprocessing


def test_what_the_family_assumes_is_open():
    assert open_parts({}) == TRIABLE
    assert open_parts(dict.fromkeys(TRIABLE, FAMILY)) == TRIABLE
    settled = {"values": "preprocessor_config.json", "channels": FAMILY, "boxes": "the graph"}
    assert open_parts(settled) == ("channels", "resize")


def test_the_list_of_parts():
    assert parse_parts("resize, values") == ("values", "resize")
    for text in ("", "values,", "colour", "interpolation"):
        with pytest.raises(UsageError, match="is unknown"):
            parse_parts(text)


def test_padding_stays():
    own = Interpretation(
        Preprocessing(Resize.LETTERBOX, pad=0, longest=636, enlarge=2), BoxFormat.XYXY, {}
    )
    assert {one.preprocessing.pad for one in candidates(own, ["values", "channels"])} == {0}
    assert {one.preprocessing.longest for one in candidates(own, ["channels"])} == {636}
    assert {one.preprocessing.enlarge for one in candidates(own, ["resize"])} == {2, None}
