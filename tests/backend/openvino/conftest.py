"""What the tests of the OpenVINO backend share."""

import pytest

pytest.importorskip("openvino", reason="OpenVINO is not installed", exc_type=ImportError)
