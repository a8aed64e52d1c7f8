"""`detcli report`: a page from the records of an earlier run."""
