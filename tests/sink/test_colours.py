"""The colours of classes, and of the text on them."""

import cv2
import numpy as np
import pytest
from sink.drawing import linear, luminance

from detcli.sink.colours import colour_of, ink

JUST_NOTICEABLE = 2.3  # distance of colours in CIE L*a*b* that people begin to see

# What people without the cones for green see of linear RGB, by Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)


@pytest.mark.parametrize("vision", [np.eye(3), DEUTERANOPIA])
def test_the_first_80_classes_have_distinct_and_strong_colours(vision):
    """To people with deuteranopia, too; and the first ten, which most images need, far more."""
    rgb = np.array([colour_of(class_id)[::-1] for class_id in range(80)]) / 255
    light = np.clip(linear(rgb) @ vision.T, 0, 1)
    points = cv2.cvtColor(np.float32([light]), cv2.COLOR_LRGB2Lab)[0]  # type: ignore[arg-type, call-overload]
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag([np.inf] * 80)
    assert distances.min() > 2 * JUST_NOTICEABLE
    assert distances[:10, :10].min() > 6 * JUST_NOTICEABLE


@pytest.mark.parametrize("class_id", [0, 1, 79, 364, 1202])
def test_the_colour_of_any_class_is_strong(class_id):
    colour = colour_of(class_id)
    for part in colour:
        assert isinstance(part, int)
    assert min(colour) >= 0
    assert max(colour) <= 255
    assert max(colour) - min(colour) > 100


def test_text_is_legible_on_every_colour():
    """At least 4:1, by the definition of WCAG 2 (for large text it asks for 3:1)."""

    for class_id in range(0, 2000, 7):
        colour = colour_of(class_id)
        low, high = sorted([luminance(colour), luminance(ink(colour))])
        assert high / low >= 4, class_id
