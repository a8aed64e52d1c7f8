"""Programs that measure; no tests."""
