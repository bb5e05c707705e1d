"""What is fitted to a model on a prompt set: lenses, maps between models, replacements of layers; each with a
certificate. `driver` fits every kind; files are read here without torch."""

from .file import ENDING, Fit, find, is_name, named, of_model, read

__all__ = ["ENDING", "Fit", "find", "is_name", "named", "of_model", "read"]
