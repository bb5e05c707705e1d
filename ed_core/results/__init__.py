"""What is stored: bytes, summaries, the store and its lookup. Numpy only."""
