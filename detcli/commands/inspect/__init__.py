"""What a model file is: `detcli inspect`.

examine.py    puts the report together
ending.py     the layout, and where the graph would be cut
precision.py  what the network computes in, and what its weights are kept in
cost.py       operations, from shapes
tensors.py    inputs, outputs and their dynamic axes
text.py       text from a damaged file
opsets.py     what operator sets the runtime takes
advice.py     what deserves a look, with its fix
report.py     the report itself
"""
