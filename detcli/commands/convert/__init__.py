"""Conversion: a model file made into another, and held against it."""
