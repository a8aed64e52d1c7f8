"""`detcli predict`: boxes from pictures and videos."""
