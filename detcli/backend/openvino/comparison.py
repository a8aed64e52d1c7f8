"""The comparison of a network's output with ONNX Runtime's, before its first use."""

import logging

import numpy as np

from detcli.backend.network_output import split_by_image
from detcli.backend.openvino.library import CompiledModel
from detcli.backend.postprocess import HeadArray
from detcli.backend.preprocess import Tensor, to_tensors
from detcli.core.errors import InferenceError, ModelError
from detcli.data.geometry import Letterbox
from detcli.model.contract import Contract, Layout
from detcli.model.prepared import PreparedModel

log = logging.getLogger(__name__)

TOLERANCE = 0.02
"""Mean difference of the sorted values of a head's rows, as a share of the largest, or of 1.

Sorted, because a network that chooses among queries may order them differently. For 26 files of 14
families, float32 differs by at most 0.000005, float16 by 0.00006, int8 by 0.0009; the wrong
HardSigmoid by 0.5.
"""


def require_same_head(compiled: CompiledModel, model: PreparedModel) -> None:
    """Require that OpenVINO and ONNX Runtime compute the same head from an image of noise.

    The head is the network's output before detections are selected. A network that selects them
    itself is not compared, since it detects nothing in noise; neither is a network that ONNX
    Runtime cannot run.

    Args:
        compiled: OpenVINO's network, compiled in float32.
        model: The model that it was compiled from.

    Raises:
        ModelError: The heads differ by more than TOLERANCE.
    """
    contract = model.contract
    if contract.layout is Layout.ROWS:
        return
    batch = _noise_batch(contract)
    try:
        expected_output = _run_onnxruntime(model, batch)
    except (ModelError, InferenceError) as error:
        log.info("OpenVINO is not compared with ONNX Runtime: %s", error)
        return
    request = compiled.create_infer_request()
    request.infer([batch])
    output = request.get_output_tensor().data

    head = _first_head(output, len(batch), contract)
    expected_head = _first_head(expected_output, len(batch), contract)
    difference = _difference(head, expected_head)
    log.debug("%s: OpenVINO differs from ONNX Runtime by %g", model.name, difference)
    if difference > TOLERANCE:
        raise ModelError(
            f"OpenVINO computes something else from {model.name} than ONNX Runtime does: its head "
            f"differs by {difference:.0%}",
            "use --device cpu, and report the model to OpenVINO",
        )


def _noise_batch(contract: Contract) -> Tensor:
    """Make a network's input of one image of noise, repeated as often as a batch has images."""
    size = contract.input_shape(None)
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    image_count = contract.batch or 1
    return to_tensors(
        [noise] * image_count,
        [Letterbox.fit(size, size)] * image_count,
        contract.preprocessing,
        contract.input_dtype,
    )


def _run_onnxruntime(model: PreparedModel, batch: Tensor) -> HeadArray:
    """Run a model on the CPU with ONNX Runtime, and return its only output.

    Args:
        model: A model whose output is the heads of images.
        batch: `(B, 3, H, W)`, preprocessed images.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
        InferenceError: It cannot run the model on the batch.
    """
    from detcli.backend.session import CPU, TensorSession  # this import is slow and seldom needed

    session = TensorSession("cpu", CPU, model.graph, model.name)
    (output,) = session.run(model.contract.input_name, batch).values()
    return output


def _first_head(output: HeadArray, image_count: int, contract: Contract) -> HeadArray:
    """Return the head of the first image of a batch, with one column for each anchor.

    All images of the batch are the same, so the first is enough.

    Args:
        output: The network's output, `(B, 4 + C, N)`, or `(B, N, 4 + C)` if the contract says so.
        image_count: B, the number of images in the batch.
        contract: What the model says about its output.

    Returns:
        `(4 + C, N)`: the boxes in the first four rows, then the scores of each class.
    """
    head = split_by_image(output, image_count, contract)[0]
    if contract.anchors_first:
        return head.T
    return head


def _difference(head: HeadArray, expected: HeadArray) -> float:
    """Return how far two heads differ in boxes or in scores, whichever is more.

    Args:
        head: `(4 + C, N)`: the boxes in the first four rows, then the scores of each class.
        expected: The same from the other runtime.

    Returns:
        A share of the largest value, see TOLERANCE; 1.0 if the heads have different shapes.
    """
    if head.shape != expected.shape:
        return 1.0
    box_difference = _difference_of_rows(head[:4], expected[:4])
    score_difference = _difference_of_rows(head[4:], expected[4:])
    return max(box_difference, score_difference)


def _difference_of_rows(rows: HeadArray, expected: HeadArray) -> float:
    """Return the mean difference of the sorted values of each row, as a share of the largest.

    Rows are sorted since networks may order equal anchors or queries differently. Where the largest
    absolute value is below 1, the difference is a share of 1.

    Args:
        rows: `(R, N)`.
        expected: `(R, N)`.
    """
    if not rows.size:
        return 0.0
    values = np.sort(np.nan_to_num(rows.astype(np.float64)))
    expected_values = np.sort(np.nan_to_num(expected.astype(np.float64)))
    largest = max(1.0, float(np.abs(values).max()), float(np.abs(expected_values).max()))
    return float(np.abs(values - expected_values).mean()) / largest
