"""A card of images, and the command that deals reviews of it."""

import os
import shutil

import pytest
from reviews import DEAL, Card, Promise


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A card of 1000 images in a folder, which nobody writes to."""
    card = Card(tmp_path_factory.mktemp("card"))
    card.write_images()
    return card


@pytest.fixture
def card(images, tmp_path):
    """The card without its images, and records that a test may change."""
    return images.copy_to(tmp_path)


@pytest.fixture
def linked_images(images, card):
    """The images of the card in their folder, which is linked: a test only reads it."""
    (card.folder / "card").symlink_to(images.folder / "card")


@pytest.fixture
def removable_images(images, card):
    """The images of the card, each linked: a test may remove them, but not write to them."""
    shutil.copytree(images.folder / "card", card.folder / "card", copy_function=os.link)


@pytest.fixture
def promise(invoke, card):
    return Promise(invoke, card.folder)


@pytest.fixture(scope="session")
def dealt_review(images, tmp_path_factory):
    """A review of the card as it is dealt, which tests copy."""
    from typer.testing import CliRunner

    from detcli.cli.app import app

    folder = tmp_path_factory.mktemp("dealt")
    words = ["promise", "deal", str(images.folder / "boxes.jsonl")] + DEAL[1:]
    words += ["-o", str(folder / "review"), "--images", str(images.folder), "--repeat", "5%"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return folder / "review"


@pytest.fixture
def review(dealt_review, promise):
    """A review that was dealt, in the folder of the test; nobody writes to its images."""
    shutil.copytree(dealt_review, promise.review, ignore=shutil.ignore_patterns("images"))
    (promise.review / "images").symlink_to(dealt_review / "images")
    return promise.review
