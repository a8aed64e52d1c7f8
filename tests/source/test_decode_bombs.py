"""No file takes more memory than its declared size needs: bombs of every format."""

import pytest

from detcli.core.opencv import PIXEL_LIMIT

pytest.importorskip("resource", reason="the memory of a process cannot be read here")

from source.bombs import MAX_PIXELS, bombs
from thinning import thin

pytestmark = pytest.mark.slow

LIMIT_MIB = 60
"""For a megapixel, the file itself, and what a library keeps when it is first used."""

AVIF_BYTES = 16
"""For a pixel of an AVIF file whose boxes lie; libavif decodes up to 268 megapixels."""


def test_no_bomb_takes_the_memory_that_it_asks_for(report_of, tmp_path):
    files = dict(bombs())
    assert len(files) >= 40
    lying_name = "hidden.avif"  # no header of the file says what is in it
    for name in {lying_name} | set(thin("bombs", files, 6)):
        (tmp_path / name).write_bytes(files[name])
    results = report_of("source.bombs", tmp_path, **{PIXEL_LIMIT: str(MAX_PIXELS)})
    lying_mib, _ = results.pop(lying_name)
    assert lying_mib < AVIF_BYTES * 5000 * 5000 / 2**20
    for name, (mib, outcome) in results.items():
        assert mib <= LIMIT_MIB, name
        assert not outcome.startswith("ended"), name
        if name.startswith(("whole", "hidden", "decoy")):
            assert "too large" in outcome or "not an image" in outcome, name
