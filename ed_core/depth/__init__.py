"""From curves to verdict: criteria, one prompt among others, two results, precisions, prunings. Numpy only."""
