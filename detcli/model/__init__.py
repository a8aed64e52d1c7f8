"""Model files: what a graph promises, how it is cut, and the cache of cut graphs.

zoo.py, hub.py, hub_cache.py        models by name, fetched from a hub into its cache
loading.py, structure.py            a file: its bytes, its weights, whether it can run at all
graph.py, editing.py                how graphs are read, and changed
recognise.py                        from a graph to a contract, by the following
inputs.py, heads/                   the two ends of a graph
families.py, names.py, sidecar.py   what the graph does not say
resolve_preprocessing.py            how pictures become its input, by the following
input_nodes.py, preprocessing.py    nodes at the input; --preprocess
contract.py                         what a file promises
adapt.py                            nodes that bring a graph to the form that runs
prepared.py                         contract and cut graph, cached
"""
