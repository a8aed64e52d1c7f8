"""A browser for the page, and a review to show in it."""

import cv2
import numpy as np
import pytest
from review_pages import BOX

from detcli.page.review_page import Look, ReviewImage, write_review_page


@pytest.fixture
def browser(chromium):
    """A browser in which nothing goes wrong, and which loads nothing from elsewhere."""
    chromium.messages(), chromium.requests()
    yield chromium
    assert chromium.messages() == []
    outside = [name for name in chromium.requests() if "/" in name and "://" in name]
    assert outside == []


@pytest.fixture(scope="session")
def jpeg():
    """An image of 64x48 pixels."""
    _, data = cv2.imencode(".jpg", np.full((48, 64, 3), 120, np.uint8))
    return data.tobytes()


@pytest.fixture
def review(tmp_path, jpeg):
    """Writes a review of looks with so many images each; returns its folder."""
    folder = tmp_path / "review"
    (folder / "images").mkdir(parents=True)

    def write(*image_counts, rounds=None, wanted="animal", looks=None):
        numbered_looks = []
        for number, image_count in enumerate(image_counts):
            images = []
            for frame in range(image_count):
                file = f"images/{number}-{frame}.jpg"
                (folder / file).write_bytes(jpeg)
                images.append(ReviewImage(file, [BOX]))
            round_number = rounds[number] if rounds else 1
            numbered_looks.append(Look(f"cam/{number}.jpg", images, round_number, 1))
        # The browser keeps labels by the deck, whichever folder it is in.
        deck_id = str(tmp_path)
        write_review_page(
            folder,
            deck_id=deck_id,
            review_id="1f0c",
            class_name=wanted,
            looks=looks or numbered_looks,
        )
        return folder

    return write
