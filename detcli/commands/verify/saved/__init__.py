"""Both sides were saved: the records of two runs, or of one beside COCO results."""
