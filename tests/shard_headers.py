"""A header for tests of manifests."""


def header(**changes):
    """What a run's records depend on; `changes` are settings."""
    settings = {"model": "colours", "model_sha256": "0" * 64, "conf": 0.25, "classes": []}
    return {
        "detcli": "1.0",
        "format": "jsonl",
        "shard_size": 0,
        "settings": settings | changes,
        "inputs": {"start_s": 0.0, "end_s": None, "max_pixels": 100, "strict": False},
    }
