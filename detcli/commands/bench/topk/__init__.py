"""Top-k and selection beside the ways in which other programs do them.

cases.py     what is to be done, the right answer, and whether another one agrees
sorts.py     NumPy's sorts, and CuPy's    torch.py, runtime.py    other libraries
measure.py   all of it, taking turns    report.py   what comes out
"""
