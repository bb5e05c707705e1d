"""Which model: from its name alone to its size, its files and what may be done with it. No torch."""
