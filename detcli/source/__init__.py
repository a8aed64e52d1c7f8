"""From sources to records: source -> decode -> (the detector) -> record."""
