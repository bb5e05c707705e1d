"""The bundled demo: two small language models trained here, and prompts they know the answers to."""

import json
from pathlib import Path

FOLDER = Path(__file__).parent
MODELS: dict[str, Path] = {name: FOLDER / "models" / name for name in ("ed-demo-16", "ed-demo-8")}
EXAMPLE = "sum-mod10-5-a"  # the prompt whose results are shipped: what the first page shows
PROMPTS: Path = FOLDER / "prompts.jsonl"


def load_prompts() -> list[dict]:
    """The bundled prompts, in the order of the file."""
    return [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
