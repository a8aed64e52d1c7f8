"""Measuring: how long each stage takes, how many pictures a second, whether that has changed.

request.py      what is to be measured
run.py          one measurement from beginning to end
latency.py      one batch after the other, stage by stage    clock.py  the stages' clock
throughput.py   all at once, as `predict` does it
cold_start.py   whole processes                              commands.py  their command lines
sweep.py        many combinations, a process each
topk/           top-k and selection beside those of other libraries
warm_up.py      until the times are stable
bootstrap.py    how certain a median is, and a ratio of two
baseline.py     a measurement in a file, and the next one against it
machine.py      what is measured on                          gpu.py  what nvidia-smi tells
noise.py        whether something else disturbed it
memory.py       the most that was taken
figures.py      samples, summarised                           report.py  what comes out
plot.py         and as a picture
"""
