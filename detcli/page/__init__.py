"""The HTML report: its folder, its data, and where the images of records are."""
