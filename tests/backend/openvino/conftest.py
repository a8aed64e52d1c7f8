"""What the tests of the OpenVINO backend share."""

import optional

optional.require("openvino")
