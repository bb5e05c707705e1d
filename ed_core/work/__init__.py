"""From request to result: resolving, estimate and computing; the queue with its two lanes, and their worker processes.

A job is a function and its arguments: `function(turn, *arguments)`, importable by name and torch-free to import. The
queue (`queue.py`) hands it to the worker of a lane (`worker.py`); neither knows what it does. `measure.py` is the job
behind every panel; `runs/` holds studies, claims, cards and fits. From the shell the same functions run in the
foreground."""
