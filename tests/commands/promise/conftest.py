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
    """The card, with its images linked, and records that a test may change."""
    shutil.copytree(images.folder / "card", tmp_path / "card", copy_function=os.link)
    card = Card(tmp_path)
    assert card.animals == images.animals
    return card


@pytest.fixture
def promise(invoke, card):
    return Promise(invoke, card.folder)


@pytest.fixture(scope="session")
def dealt_review(images, tmp_path_factory):
    """A review of the card as it is dealt, which tests copy."""
    from typer.testing import CliRunner

    from detcli.cli.app import app

    folder = tmp_path_factory.mktemp("dealt")
    words = ["promise", "deal", str(images.folder / "boxes.jsonl"), *DEAL[1:]]
    words += ["-o", str(folder / "review"), "--images", str(images.folder), "--repeat", "5%"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return folder / "review"


@pytest.fixture
def review(dealt_review, promise):
    """A review that was dealt, in the folder of the test."""
    shutil.copytree(dealt_review, promise.review)
    return promise.review
