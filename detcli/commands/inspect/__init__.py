"""`detcli inspect`: what a model file is.

command.py           parses the options
examine.py           puts the report together: tensors, layout, where the graph would be cut
network.py           what the network computes in, and how many operations it takes
advice.py            what deserves attention, each with its fix
report.py            the report
render.py            the report as a table
"""
