"""`detcli convert`: converts a model file and compares the result with the original.

command.py, options.py    what is asked for
run.py                    converts, compares, and writes what finds the same
steps.py, passes/         the order of the passes, and the passes
calibration.py            ranges of tensors over pictures, for --half and --int8
report.py, render.py      the report, as JSON and as tables
"""
