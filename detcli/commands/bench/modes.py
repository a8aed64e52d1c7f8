"""What can be measured, and what a comparison can say; apart, since `--help` needs little else."""

from enum import StrEnum


class Mode(StrEnum):
    """What is measured."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    TOPK = "topk"


class Verdict(StrEnum):
    """What a comparison with a baseline says."""

    WITHIN = "within the limit"
    UNDECIDED = "undecided"
    REGRESSION = "regression"
