"""What the axes of an output mean that may hold the cells of a scale."""

import pytest

from detcli.model.heads.output_layouts import layout_of_output

# Rows and columns of cells in each scale of an input of 128x192 pixels.
MAPS = [[16, 24], [8, 12], [4, 6]]


@pytest.mark.parametrize(
    "dims", [[1, "a", "b", 384, 4], [8], [], [1, "N", 4], [1, 3, "H", "W"], [1, 3, 16, "W"]]
)
def test_a_tensor_with_other_axes_or_unknown_sides_holds_no_cells(dims):
    assert layout_of_output("tensor", dims, MAPS, [1, 1, 1]) is None


def test_a_map_holds_the_cells_of_its_scale():
    layout = layout_of_output("tensor", [1, 3, 8, 12], MAPS, [1, 1, 1])
    assert layout.scale == 1
    assert layout.channels == 3
