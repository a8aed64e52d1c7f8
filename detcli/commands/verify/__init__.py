"""Verification: run a model two ways, and say whether the detections agree."""
