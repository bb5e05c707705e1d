"""From curves to verdict: criteria, one prompt among others, two results, precisions, prunings. Numpy only.

Sentences of the verdict are in `wording.py`; cases of them in `tests/wording.toml`."""
