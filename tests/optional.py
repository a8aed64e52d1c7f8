"""Libraries of the extra `dev-all`, without which the tests that use them are skipped.

`make setup` installs the extra `dev`; CI, where nothing shall be skipped, installs `dev-all`.
"""

from importlib.util import find_spec
from types import ModuleType

import pytest

PACKAGES = {
    "botocore": "botocore",
    "cuda": "cuda-core",
    "duckdb": "duckdb",
    "flask": "flask",
    "flask_cors": "flask-cors",
    "imagecodecs": "imagecodecs",
    "motmetrics": "motmetrics",
    "moto": "moto",
    "obstore": "obstore",
    "onnxsim": "onnxsim",
    "onnxslim": "onnxslim",
    "openvino": "openvino",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "ray": "ray",
    "selenium": "selenium",
    "supervision": "supervision",
    "trackers": "trackers",
}
"""The packages of `dev-all` that tests import, by the first part of their modules' names."""


def reason(module: str) -> str:
    """Why a test without a module is skipped, and what to do about it."""
    package = PACKAGES[module.partition(".")[0]]
    return f'{package} is not installed: pip install -e ".[dev-all]"'


def require(module: str) -> ModuleType:
    """Import a module of `dev-all`; without it, skip the test, or the file at whose top this is."""
    return pytest.importorskip(module, reason=reason(module), exc_type=ImportError)


def is_installed(module: str) -> bool:
    """Whether a module of `dev-all` can be imported; it is not, as that takes seconds for some."""
    return find_spec(module) is not None


def needs(module: str) -> pytest.MarkDecorator:
    """Mark a test, a case or a file that is skipped without a module of `dev-all`."""
    return pytest.mark.skipif(not is_installed(module), reason=reason(module))


PARQUET = pytest.param("parquet", marks=needs("pyarrow"))
"""The name of the format as a case of a test."""
