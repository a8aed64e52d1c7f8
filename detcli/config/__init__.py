"""Options: what the user may ask for, and the Config that a run gets of it."""
