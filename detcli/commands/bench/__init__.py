"""`detcli bench`: how long each stage takes, how many pictures a second, and whether it got slower.

command     options and output                          request   what to measure
run         one measurement: latency or throughput      sweep     combinations, each in a process
topk        top-k beside other libraries                cold_start  whole processes
sampling    clocks, warm-up, turns, intervals           inputs    the pictures, over and over
machine     hardware, versions, what disturbed it       baseline  comparison with an earlier run
report      the results, as JSON                        render, plot  tables and charts
"""
