"""The command line: options from rows, and how commands begin and end.

app.py           the subcommands, and how exceptions become exit codes
command.py       a command's signature, made from its options
command_help.py  its help, whole or on a screen
completion.py    completion in the shell
console.py       messages on standard error
defaults.py      options that variables and the user's file set
help.py          what all commands share
records.py       records that a command takes as its argument
report.py        reports, as tables and as JSON
sorting.py       the option of commands that sort images
"""
