"""Trained detectors that strangers published; skipped where ../shared is not there.

Each FILE.json beside FILE.onnx in ../shared/real holds what the authors' own decode finds.
"""

import json
from dataclasses import replace
from pathlib import Path

import forked
import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import SHARED
from families import described, overlap
from graph_edits import node_of
from head_checks import read
from thinning import thin

from detcli.data.record import BOX
from detcli.model.file import ModelFile

pytestmark = pytest.mark.slow

FILES = described(SHARED / "real")
MARGIN = 0.03
"""Detections whose score is nearer to the confidence than this may be found or not."""


def rounds_8_bits_otherwise(path):
    """Whether a model in 8 bits gives other scores on this processor than on those with VNNI.

    On one with AVX2 alone, the score of one of the four boxes of lpr-quant-antoxa stays below the
    threshold; on those with VNNI, all four are found.
    """
    processor = Path("/proc/cpuinfo")
    has_vnni = not processor.exists() or "vnni" in processor.read_text("utf-8")
    graph = onnx.load(path, load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    return not has_vnni and "QuantizeLinear" in operators


@pytest.mark.parametrize("name", thin("trained detectors of strangers", FILES or [None], 12))
def test_a_trained_detector_is_read_without_an_option(name, shared):
    """The same boxes: class, an IoU of 0.7 and a score within 0.1, for nine in ten at least."""
    shared("real")
    entry = FILES[name]
    folder = SHARED / "real"
    reference = entry["reference"]["pictures"]
    options = ["-m", folder / entry["file"], "--conf", entry["threshold"], "--device", "cpu", "-q"]
    options += entry.get("options", [])  # where its author does other than the family
    if entry["task"] == "segment":
        options.append("--boxes-only")
    images = [folder / "pictures" / image for image in reference]
    command = ["predict"] + images + options + ["--format", "jsonl"]
    process = forked.run(command, timeout=300)
    if "Could not find an implementation for ConvInteger" in process.stderr:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} cannot load this quantised file")
    assert process.returncode == 0, process.stderr

    expected_count = matched_count = extra_count = 0
    clear_score = entry["threshold"] + MARGIN
    for line, image in zip(process.stdout.splitlines(), reference.values(), strict=True):
        detections = json.loads(line)["detections"]
        expected = required_detections(image, clear_score)
        unmatched = without(detections, expected)
        expected_count += len(expected)
        matched_count += len(detections) - len(unmatched)
        for detection in unmatched:
            if detection["score"] > clear_score:
                extra_count += 1
    assert expected_count, "there is nothing to find"
    least_share = 0.9
    if rounds_8_bits_otherwise(folder / entry["file"]):
        least_share = 0.7
    assert matched_count >= least_share * expected_count, f"{matched_count} of {expected_count}"
    assert extra_count <= max(1, 0.1 * expected_count), f"{extra_count} more than {expected_count}"


@pytest.mark.parametrize("name", thin("trained detectors, optimised", FILES or [None], 4))
def test_a_file_behind_basic_optimisations_has_the_same_contract(name, shared, tmp_path):
    """The names of tensors may change, and nothing that decides about boxes."""
    shared("real")
    entry = FILES[name]
    path = SHARED / "real" / entry["file"]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / path.name)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    is_segmentation = entry["task"] == "segment"
    contract = ModelFile.read(path, boxes_only=is_segmentation).detector()
    optimised_file = ModelFile.read(tmp_path / path.name, boxes_only=is_segmentation)
    optimised = optimised_file.detector()
    assert replace(optimised, head=contract.head, heads=contract.heads) == contract


def test_the_table_of_trained_files_is_that_of_the_files(shared):
    """Each file, its family, and all of the detections that the test above looks for."""
    shared("real")
    page = Path(__file__).with_name("families.md").read_text(encoding="utf-8")
    table = page.partition("<!-- trained -->")[2].partition("<!-- end of trained -->")[0]
    rows = {}
    for line in table.strip().splitlines()[2:]:
        family, name, _, written_options, found = line.strip("| ").split(" | ")
        rows[name] = (family, written_options, found)
    expected_rows = {}
    for name, entry in FILES.items():
        is_segmentation = entry["task"] == "segment"
        options = list(entry.get("options", []))
        if is_segmentation:
            options.append("--boxes-only")
        clear_score = entry["threshold"] + MARGIN
        count = 0
        for answers in entry["reference"]["pictures"].values():
            count += len(required_detections(answers, clear_score))
        model = ModelFile.read(SHARED / "real" / entry["file"], boxes_only=is_segmentation)
        written_options = "-"
        if options:
            written_options = f"`{' '.join(options)}`"
        found = f"{count} of {count}"
        expected_rows[name] = (model.detector().family, written_options, found)
    assert rows == expected_rows


def required_detections(answers, clear_score):
    """The authors' detections in an image that must be found."""
    required = []
    for answer in answers["detections"]:
        if answer["score"] >= clear_score:
            required.append(answer)
    return required


def without(detections, expected_detections):
    """The detections of a record that are none of the authors'."""
    unmatched = list(detections)
    for expected in expected_detections:
        candidates = []
        boxes = []
        for detection in unmatched:
            is_near = abs(detection["score"] - expected["score"]) <= 0.1
            if detection["class_id"] == expected["class"] and is_near:
                candidates.append(detection)
                boxes.append([detection[side] for side in BOX])
        shares = overlap(np.array(boxes).reshape(-1, 4), np.array(expected["box"]))
        if shares.max(initial=0) >= 0.7:
            unmatched.remove(candidates[shares.argmax()])
    return unmatched


def test_priors_are_those_that_an_ultraface_holds_itself(shared):
    """Its boxes before and behind the nodes that decode them."""
    model = onnx.load(shared("real/ultraface-rfb-320.onnx"))
    image = np.random.default_rng(1).random((1, 3, 240, 320), np.float32)
    decoded, contract = read(model, image=image)
    outputs = {output.name: output for output in model.graph.output}
    outputs["boxes"].name = node_of(model.graph, "Slice").input[0]
    raw, other_contract = read(model, image=image)
    assert contract.family == "UltraFace"
    assert other_contract.family == "UltraFace"
    assert other_contract.box_fractions != contract.box_fractions
    np.testing.assert_allclose(raw[0], decoded[0], atol=1e-3)
