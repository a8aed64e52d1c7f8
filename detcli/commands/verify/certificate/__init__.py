"""Certificates: what was compared, with what, and what came of it."""
