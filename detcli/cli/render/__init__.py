"""Reports as tables, one module a command: what `--format table` prints."""
