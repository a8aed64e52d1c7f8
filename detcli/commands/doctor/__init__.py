"""What this machine can run detcli on, and why not on the rest; nothing is changed.

examine.py     the whole examination: a Report
report.py      what it consists of
process.py     asks what may crash or never answer, in a process of its own
probes.py      what is asked there: the driver, ONNX Runtime's libraries, the display
trial.py       a small detector, really run on a device
devices.py     each device: usable, or the reasons why not
packages.py    what is installed, and the command that repairs it
surroundings.py  what the system says of NVIDIA's hardware and driver, driver or not
driver.py      what is wrong with the driver, and the command that would fix it
machine.py     system, processor, memory, terminal
caches.py      detcli's cache: sizes, and clearing it
privacy.py     keeps names of people and values of the environment out of all that
"""
