"""Options: what the user may ask for, and the Config that a run gets from it.

option.py       what an option is: its flag, its value from text, what it needs and excludes
config.py       the options of a run; inputs.py, watched.py, outputs.py, shards.py: four of their
                groups
values.py       values of options; device.py: devices; cores.py: kinds of cores
shapes.py       zones, lines and regions; ignored.py: polygons in which nothing counts
typed.py        values of fields that were given in Python
differences.py  how the options of two runs differ
rerun.py        the command that detects as an earlier run did
"""
