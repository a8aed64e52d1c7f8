"""Whether OpenVINO computes what a graph says: it is compared with ONNX Runtime, once.

OpenVINO translates ONNX into operators of its own, and says nothing where a translation is wrong.
That of HardSigmoid in 2026.4 takes `beta = 0`, which is not the default, for the default.
"""

import logging
from typing import Any

import numpy as np

from detcli.backend.postprocess import HeadArray
from detcli.backend.preprocess import to_tensors
from detcli.backend.session import CPU, TensorSession
from detcli.core.errors import InferenceError, ModelError
from detcli.core.geometry import Letterbox
from detcli.model.contract import Layout
from detcli.model.file import PreparedModel

log = logging.getLogger(__name__)

TOLERANCE = 0.02
"""Mean difference of the sorted values of a head's rows, as a share of the largest, or of 1.

Sorted, because a network that chooses among queries may order them otherwise. Of 26 files of 14
families, float32 differs by at most 0.000005, float16 by 0.00006, int8 by 0.0009; the wrong
HardSigmoid by 0.5.
"""


def require_same_head(compiled: Any, model: PreparedModel) -> None:  # noqa: ANN401
    """Compare a network that was compiled in float32 with ONNX Runtime on a picture of noise.

    One that selects its rows itself is not compared, since noise gives none.
    """
    contract = model.contract
    if contract.layout is Layout.ROWS:
        return
    size = contract.canvas(None)
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    count = contract.batch or 1
    tensors = to_tensors([noise] * count, [Letterbox.fit(size, size)] * count, contract)
    try:
        session = TensorSession("cpu", CPU, model.graph, model.name)
        (expected,) = session.run(contract.input_name, tensors).values()
    except (ModelError, InferenceError) as error:
        log.info("OpenVINO is not compared with ONNX Runtime: %s", error)
        return
    request = compiled.create_infer_request()
    request.infer([tensors])
    own = request.get_output_tensor().data
    pair = (head[0].T if contract.anchors_first else head[0] for head in (own, expected))
    difference = _difference(*pair)
    log.debug("%s: OpenVINO differs from ONNX Runtime by %g", model.name, difference)
    if difference > TOLERANCE:
        raise ModelError(
            f"OpenVINO computes something else from {model.name} than ONNX Runtime does: its head "
            f"differs by {difference:.0%}",
            "use --device cpu, and report the model to OpenVINO",
        )


def _difference(own: HeadArray, expected: HeadArray) -> float:
    """How far heads `(4 + C, N)` differ in boxes or in scores, whichever is more; see TOLERANCE."""
    if own.shape != expected.shape:
        return 1.0
    shares = []
    for part in (slice(0, 4), slice(4, None)):
        pair = [np.sort(np.nan_to_num(head[part].astype(np.float64))) for head in (own, expected)]
        scale = max(1.0, *(float(np.abs(values).max(initial=0)) for values in pair))
        shares.append(float(np.abs(pair[0] - pair[1]).mean()) / scale if pair[0].size else 0.0)
    return max(shares)
