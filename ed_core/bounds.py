"""What may come from outside at most. Bytes unless said otherwise; a bound is checked before anything of that size is
read or made. Sealed containers have theirs in `files.Bounds`, models the free memory (`work.resolve`)."""

from __future__ import annotations

PROMPTS = 64 << 20  # a file of prompts
LINES = 100_000  # prompts of one file
CHUNK = 1000  # prompts of one item of a study
VALUES = 1 << 22  # numbers that an item has for one prompt in one column
TOML = 1 << 20  # a study's file, the settings
CONFIG = 16 << 20  # a JSON file of a model's folder, an adapter or a fit
TOKENIZER = 64 << 20  # tokenizer.json, and the lists of its tokens; one takes 17 times as much memory
WEIGHTS = 1 << 46  # a file of weights, which is never read whole
HEADER = 100 << 20  # the header of a .safetensors file, as the library has it
SET = 1 << 30  # a table that a study's set reads
ITEM = 256 << 20  # the sums of one item of a study
SUMS, ROWS = 4 << 30, 10_000_000  # all sums of a study: bytes, prompts of all its models
UNPACKED = 256 << 20  # numbers and text of a parquet file
FOOTER, PARTS = 64 << 20, 20_000  # of a parquet file: its metadata; columns and groups of rows, each
PLAN = 256 << 20  # the plan of a study, which names each of its prompts
ITEM_HEAD = 1 << 20  # what such a file tells of its columns

NESTING = 32  # levels of lists, objects and tables
DIGITS = 32  # of a number in JSON
TEXT = 1 << 20  # a string in JSON
SIZE = 12  # digits of a size in bytes, like 500M
PATH, NAME = 4096, 255  # a path, and each name in it

CHARACTERS = 100  # of a prompt for each token that may be: longer ones are refused before they are tokenized
LEAST_CHARACTERS = 10_000  # of a prompt that are read whatever `max_tokens` is

WHOLE = 10**9  # any size that a config names: layers, width, vocabulary
LAYERS = 10_000
RANK = 1 << 16  # of an adapter's matrices


TEMPLATE = 1 << 18  # characters of a chat template
TEMPLATE_SECONDS, TEMPLATE_MEMORY = 5.0, 256 << 20  # what rendering one may take
