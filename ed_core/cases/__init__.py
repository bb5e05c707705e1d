"""A finding that is kept: the case study, its file, its figures, its report, its numbers elsewhere."""
