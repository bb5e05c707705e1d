"""Which model a name refers to, and the opened model. The side that answers for a name imports no torch."""
