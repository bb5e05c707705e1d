"""From request to result: resolving, admission, estimate, the queue and its worker."""
