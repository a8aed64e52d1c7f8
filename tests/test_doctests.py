"""The examples in docstrings are executed."""

import doctest
import importlib

import pytest
import structure


def modules_with_examples():
    names = []
    for path in structure.files():
        if ">>>" in path.read_text(encoding="utf-8"):
            names.append(structure.module_name(path))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0
