"""Comparing detections, and the two sides that a comparison runs."""
