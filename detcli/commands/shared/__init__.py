"""What several commands need.

messages.py, progress.py    what goes to stderr
reports.py                  what goes to stdout, as tables or JSON
formats.py                  formats of records, a row each, and what writes them
saved.py, finder.py         records read back, and the pictures they are about
page.py, provenance.py      what pages and records say of what made them
comparison.py, sides.py     the detections of two sides, within a tolerance
"""
