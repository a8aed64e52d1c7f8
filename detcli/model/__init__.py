"""Model files: what a graph promises, and how it is cut to what runs.

zoo.py, hub.py         models by name, fetched from a hub into its cache
file.py                a file: its bytes, and what was recognised
prepared.py            a model that is ready to run, cached
external_data.py       files beside it that hold its weights
contract.py            what a file promises
precision.py           the number type that it computes in
structure.py           how graphs are checked before they are read
graph.py, editing.py   how graphs are read and changed
recognise.py           from a graph to a contract, by the following
refusals.py            which graphs are refused, and what is said then
read_contract.py       from what was recognised to the contract
find_head.py           which tensors are boxes and scores
metadata.py            what the file's metadata says
inputs.py, heads/      the two ends of a graph
input_nodes.py         preprocessing that is in the graph
preprocessing_sources.py  preprocessing by all that the files say
family.py, families.py  what the graph does not say
face_families.py       of detectors of faces
family_values.py       what several families share
family_heads.py        by which heads families are told apart
softmax_nodes.py       a Softmax where a graph spells it out
coarse.py              scores that a graph rounds to nothing
preprocessing.py       how images are prepared: the text form of --preprocess
sidecar.py             what the files say that Transformers writes beside a model
adapt.py, grid_nodes.py  nodes that bring a graph to the form that runs
"""
