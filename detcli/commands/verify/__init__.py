"""`detcli verify`: compares the detections of two models, devices, selections or saved runs.

request.py      what is asked for, on the command line or by a certificate
running/        both sides run: where and how; their detections and tensors, the first node
saved/          both sides were saved: the records of two runs, or COCO results
results.py      adds up what both kinds find, and says what exceeds the tolerance
certificate/    --certificate and --check
drawing.py      the pictures that differ most
page.py         the page of --report
report.py       the reports, as JSON; render.py shows them as tables
command.py      the options, the verdict and hints on stderr, the exit code
"""
