"""Parsers of option values."""

import pytest

from detcli.config.values import CropMargin, parse_duration, parse_labels, parse_size
from detcli.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("1.5g", 3 << 29),
        ("4G", 4 << 30),
        ("3GB", 3_000_000_000),
        ("64k", 64 << 10),
        ("1000000", 1_000_000),
        (" 7m ", 7 << 20),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1G", "2TiBs", "2 3", "1e9", "0x10", "nan", "²GiB", "9" * 400]
)
def test_text_that_is_not_a_size(text):
    with pytest.raises(UsageError, match="is not a size") as caught:
        parse_size(text)
    assert "2GiB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name,score", "name,score"),
        ("score, name", "name,score"),
        ("name", "name"),
        ("score", "score"),
        ("none", "none"),
    ],
)
def test_parts_of_labels(text, parts):
    assert parse_labels(text) == parts


@pytest.mark.parametrize("text", ["", "None", "names", "name,none", "name;score", "id", ","])
def test_other_parts_of_labels_are_a_usage_error(text):
    with pytest.raises(UsageError, match="name and score"):
        parse_labels(text)


def test_a_time_has_a_unit_or_is_in_seconds():
    texts = ("2", "1.5", "1s", "0.5 s", "200ms", "2min", "2m", "1h")
    assert list(map(parse_duration, texts)) == pytest.approx([2, 1.5, 1, 0.5, 0.2, 120, 120, 3600])


@pytest.mark.parametrize("text", ["10%", "16px", "0px", "2.5%"])
def test_a_margin_of_crops_is_in_percent_or_pixels(text):
    margin = CropMargin.parse(text)
    assert str(margin) == text
    assert margin.in_percent == text.endswith("%")


@pytest.mark.parametrize(
    "text", ["", "10", "-1%", "0.1", "10 em", "1e3px", "nan%", "200000px", "%"]
)
def test_text_that_is_not_a_margin(text):
    with pytest.raises(UsageError, match="is not a margin") as raised:
        CropMargin.parse(text)
    assert "10%" in raised.value.hint
