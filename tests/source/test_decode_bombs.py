"""No file takes more memory than its declared size needs: 60 bombs of every format."""

import pytest

pytest.importorskip("resource", reason="the memory of a process cannot be read here")

LIMIT_MIB = 60
"""For a megapixel, the file itself, and what a library keeps when it is first used."""

AVIF_BYTES = 16
"""For a pixel of an AVIF file whose boxes lie; libavif decodes up to 268 megapixels."""


@pytest.fixture
def bombs(report_of):
    """The memory that each bomb took, and what was said about it."""
    return report_of("source.bombs")


def test_no_bomb_takes_the_memory_that_it_asks_for(bombs):
    assert len(bombs) >= 60
    lying = bombs.pop("hidden.avif")  # no header of a file or box says what is in it
    assert {name: mib for name, (mib, _) in bombs.items() if mib > LIMIT_MIB} == {}
    assert lying[0] < AVIF_BYTES * 5000 * 5000 / 2**20


def test_each_bomb_is_a_picture_or_an_error(bombs):
    assert [name for name, (_, said) in bombs.items() if said.startswith("ended")] == []
    for name, (_, said) in bombs.items():
        if name.startswith(("whole", "hidden.webp", "decoy", "comment", "two")):
            assert "too large" in said or "not a picture" in said, name
