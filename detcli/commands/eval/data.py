"""What `--data` names: which reader reads it, and whether there is something to evaluate."""

import os
from dataclasses import dataclass
from pathlib import Path

from detcli.commands.eval.coco_data import read_coco
from detcli.commands.eval.dataset import Dataset, Form
from detcli.commands.eval.findings import Findings
from detcli.commands.eval.yolo_data import read_yolo
from detcli.errors import UsageError


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Which data.

    Attributes:
        data: COCO's `instances.json`; YOLO's `data.yaml`; a list of pictures, `.txt`; or a folder.
        images: Where the pictures of an `instances.json` are.
        split: Which part of a `data.yaml`; None is `val`.
    """

    data: Path
    images: Path | None = None
    split: str | None = None


def open_dataset(options: DataOptions, class_count: int, findings: Findings) -> Dataset:
    """Read labels.

    Args:
        options: Which.
        class_count: Of the model: how many categories data without names has.
        findings: Is told what is wrong with them.

    Raises:
        UsageError: They cannot be read, or there is nothing to evaluate.
    """
    data = options.data
    if not os.path.exists(data):
        raise UsageError(f"--data {data}: there is no such file or folder", "check the path")
    if data.is_file() and data.suffix.lower() == ".json":
        if options.split is not None:
            raise UsageError(f"--split: {data} has no parts", "name another instances.json")
        dataset = read_coco(data, options.images, findings)
    else:
        if options.images is not None:
            raise UsageError(
                f"--images: {data} says itself where its pictures are",
                "leave it out; it belongs to COCO's instances.json",
            )
        dataset = read_yolo(data, options.split, class_count, findings)
    if not dataset.samples:
        raise UsageError(f"{data} lists no pictures", "see whether it is the right file")
    if not any(len(sample.objects) for sample in dataset.samples):
        why = [f"{one.kind} ({one.count}): {one.examples[0]}" for one in findings.report()]
        if dataset.form is Form.YOLO:
            why.append("labels are looked for in a folder labels beside images")
        raise UsageError(
            f"{data}: none of the {len(dataset.samples)} pictures has a labelled object",
            "; ".join(why) or "see whether it is the right file",
        )
    return dataset
