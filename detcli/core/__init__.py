"""What everything else stands on: the Config of a run, and the values in it."""
