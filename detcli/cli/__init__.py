"""The command line: options from rows, and how commands begin and end."""
