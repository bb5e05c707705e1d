"""From curves to verdict: criteria, one prompt among others, two results, precisions, prunings. Numpy only.

Every sentence is listed in `docs/sentences.md` (`python -m tools.sentences`), those of the verdict with their cases in
`tests/wording.toml`; `tests/counted.py` counts what they claim again from the arrays."""
