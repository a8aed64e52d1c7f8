"""Sources: from the names that a user gives to the items of a run."""
