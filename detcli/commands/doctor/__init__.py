"""Examines which devices of this machine detcli can use, and why not the others.

examine.py   the whole examination, device by device
report.py    the report's types; render.py shows them as a table
process.py   asks anything that may crash or hang, in a separate process
driver.py    NVIDIA's hardware and driver: what is wrong, and the command that fixes it
packages.py  installed packages and GPU libraries: what is wrong, and the command that fixes it
machine.py   system, processor, memory, terminal, detcli's cache
"""
