"""What several commands need.

options.py, layout.py, completion.py    option types, the help around them, the shell's Tab
defaults_file.py                        detcli.toml and environment variables
setup.py                                the process; which model runs where
messages.py, progress.py                what goes to stderr
reports.py                              what goes to stdout, as tables or JSON
formats.py                              formats of records, a row each, and what writes them
saved.py, finder.py                     records read back, and the pictures they are about
page.py, provenance.py                  what pages and records say of what made them
comparison.py, sides.py                 the detections of two sides, within a tolerance
"""
