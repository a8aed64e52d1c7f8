"""Labelled pictures in any format, and detections beside their labels."""

import os
from pathlib import Path

import numpy as np

from detcli.commands.shared.labelled.coco import read_coco
from detcli.commands.shared.labelled.dataset import ClassMapping, Dataset, Findings, Kind, Sample
from detcli.commands.shared.labelled.evaluator import FOUND, EvaluatedPicture
from detcli.commands.shared.labelled.yolo import read_yolo
from detcli.detections import Detections
from detcli.errors import UsageError


def open_dataset(
    data: Path, images: Path | None, split: str | None, class_count: int, findings: Findings
) -> Dataset:
    """Read labelled pictures.

    Data without names has as many categories as the model has classes.

    Args:
        data: COCO's instances.json; YOLO's data.yaml; a list of pictures, .txt; or a folder.
        images: Folder of the pictures of an instances.json; None for images beside it.
        split: Part of a data.yaml; None for val.
        class_count: Classes of the model.
        findings: Receives problems with the data.

    Raises:
        UsageError: The data cannot be read, or has nothing to evaluate.
        DependencyError: PyYAML is needed and not installed.
    """
    if not os.path.exists(data):
        raise UsageError(f"--data {data}: no such file or folder", "check the path")
    if data.is_file() and data.suffix.lower() == ".json":
        if split is not None:
            raise UsageError(f"--split: {data} has no parts", "name another instances.json")
        dataset = read_coco(data, images, findings)
    else:
        if images is not None:
            raise UsageError(
                f"--images: {data} itself says where its pictures are",
                "leave it out; it belongs to COCO's instances.json",
            )
        dataset = read_yolo(data, split, class_count, findings)
    for sample in dataset.samples:
        if sample.path is None:
            findings.add(Kind.MISSING, sample.name)
    if not dataset.samples:
        raise UsageError(f"{data} lists no pictures", "check whether it is the right file")
    if not any(len(sample.objects) for sample in dataset.samples):
        why = [f"{one.kind} ({one.count}): {one.examples[0]}" for one in findings.report()]
        if dataset.form == "yolo":
            why.append("labels are looked for in a folder labels beside images")
        raise UsageError(
            f"{data}: none of the {len(dataset.samples)} pictures has a labelled object",
            "; ".join(why) or "check whether it is the right file",
        )
    return dataset


def beside_labels(
    sample: Sample,
    dataset: Dataset,
    mapping: ClassMapping,
    size: tuple[int, int],
    detections: Detections,
) -> EvaluatedPicture:
    """Put the detections of a picture beside its labels.

    Args:
        sample: The picture.
        dataset: It belongs to this.
        mapping: The model's classes and the data's categories.
        size: Height and width of the picture.
        detections: In its pixels; those of classes without a category are left out.
    """
    height, width = size
    objects = sample.objects.copy()
    if dataset.form == "yolo":
        objects["box"] *= (width, height, width, height)
    categories = np.array([-1 if one is None else one for one in mapping.category_of])
    found = np.zeros(len(detections), FOUND)
    found["box"] = detections.xyxy
    found["box"][:, 2:] -= found["box"][:, :2]
    found["category"] = categories[detections.class_id]
    found["score"] = detections.score
    return EvaluatedPicture(sample.image_id, objects, found[found["category"] >= 0])
