"""The examples in docstrings are executed."""

import doctest
import importlib

import pytest
import structure

MODULES = [
    structure.module_name(path)
    for path in structure.files()
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0
