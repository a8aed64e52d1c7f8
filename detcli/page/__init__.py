"""The HTML report and the review page, and where the images of records are."""
