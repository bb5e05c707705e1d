"""Many visitors at once: `make load`, or `PYTHONPATH=tests python -m load --help`."""
