"""Manifests for tests."""

from detcli.run.shards.manifest import FIRST_MANIFEST, Manifest, publish


def header(size=0, **changes):
    """What a run's records depend on; `changes` are settings."""
    settings = {"model": "colours", "model_sha256": "0" * 64, "conf": 0.25, "classes": []}
    return {
        "detcli": "1.0",
        "format": "jsonl",
        "shard_size": size,
        "settings": settings | changes,
        "inputs": {
            "start_s": 0.0,
            "end_s": None,
            "max_pixels": 100,
            "strict": False,
            "lenient": False,
        },
    }


def written(store, names, size, **fields):
    """The manifest of a run that has just been begun; `fields` replace those of its header."""
    assert publish(store, FIRST_MANIFEST, header(size) | fields, names)
    return Manifest(store)
