"""`detcli bench`: how long each stage takes, how many pictures a second, and whether it got slower.

command.py, request.py     options and output; what to measure
run.py, cold_start.py      one measurement, latency or throughput; whole processes
sampling.py, inputs.py     clocks, warm-up, turns, intervals; the pictures, over and over
time_limit.py              for each step of a measurement
machine.py, baseline.py    hardware, versions, what disturbed it; an earlier run
report.py                  the results, as JSON
render.py                  as tables
"""
