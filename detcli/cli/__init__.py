"""The command line: one file a command; `app` turns errors into exit codes."""
