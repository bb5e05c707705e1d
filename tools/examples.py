"""The shipped examples: results of one bundled prompt on each bundled model and on the real ones of the package
registry, so that no page is blank at first; of the same prompt what *A | B* opens on beside each, its untrained twin;
and what Home shows of a prompt of each other kind on the first real one. The real ones must be here: `python -m ed_core
fetch smollm2`, and `gemma3-270m`. Beside them what the verdict reads of the same prompts on five untrained twins of
each model, and no more (`examples/twins`).

`python -m tools.examples` writes them anew (with names of probes or models, theirs only; with `twins`, the twins'
only); it must run after the weights, the prompt or any number changed (a test holds it to that). Torch runs on one
thread, so that the files come out the same on every machine of a kind."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch

from ed_core.depth.criteria import COSINES
from ed_core.depth.side_by_side import COMPARED
from ed_core.depth.verdict import READS
from ed_core.probes import PROBES, Probe, find
from ed_core.results.aggregate import summarize
from ed_core.results.lookup import EXAMPLES, TWINS
from ed_core.results.wire import pack, unpack
from ed_core.sources import controls
from ed_core.sources.bundled import CHARACTERS, KINDS, MODELS, example_of, load_prompts
from ed_core.sources.specs import n_passes
from ed_core.types import ProbeResult, Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve, twin

from . import given

READ = {"contributions": COSINES, "logit_lens": ("kl", "overlap", "jsd", "rank")}  # the last: for the summary

REAL = ("smollm2", "gemma3-270m")  # the models of the package registry: of these numbers alone, never weights


def main(names: Sequence[str] = ()) -> None:
    """Compute every probe (or those of these names) as its page asks for it at first on every model (or on these), and
    the twins; replaces the folders' files."""
    torch.set_num_threads(1)
    prompts = {p["id"]: Prompt(p["text"], p["answer"]) for m in ("", CHARACTERS[0]) for p in load_prompts(m)}
    of = [name for name in names if name in (*MODELS, *REAL)] or [*MODELS, *REAL]
    probes = set(names) - set(of) - {"twins"}
    if probes or "twins" not in names:
        of_models(prompts, of, probes)
    if not probes or "twins" in names:
        of_twins(prompts, of)


def of_models(prompts: dict[str, Prompt], of: Sequence[str], probes: Collection[str]) -> None:
    models = compute.Models()
    EXAMPLES.mkdir(exist_ok=True)
    for old in EXAMPLES.glob("*.npz"):
        request = unpack(old.read_bytes()).request
        if request.models[0].source in of and (not probes or request.probe in probes):
            old.unlink()
    for name, control, prompt, probe in (*shipped(), *compared()):
        if name in of and (not probes or probe.name in probes):
            spec = twin(resolve(name), control)
            result = compute.run(models.get(spec), probe.at_first(spec).request(spec, prompts[prompt]))
            file = EXAMPLES / f"{result.request.key}.npz"
            file.write_bytes(deflated(pack(result)))
            print(f"{name} {control} {prompt} {probe.name}: {file.name}, {file.stat().st_size // 1024} KiB")


def of_twins(prompts: dict[str, Prompt], of: Sequence[str]) -> None:
    TWINS.mkdir(exist_ok=True)
    for old in TWINS.glob("*.npz"):
        if unpack(old.read_bytes()).request.models[0].source in of:
            old.unlink()
    for name in of:
        for seed in controls.SEEDS:
            spec, models = twin(resolve(name), "untrained", seed), compute.Models()
            for prompt in dict.fromkeys(id for one, _, id, _ in shipped() if one == name):
                for probe in READS:
                    request = find(probe)().request(spec, prompts[prompt])
                    if (EXAMPLES / f"{request.key}.npz").is_file():
                        continue  # whole
                    result = read(compute.run(models.get(spec), request))
                    (TWINS / f"{result.request.key}.npz").write_bytes(deflated(pack(result)))
            print(f"{name}, seed {seed}")
    print(f"{sum(file.stat().st_size for file in TWINS.glob('*.npz')) // 1024} KiB")


def read(result: ProbeResult) -> ProbeResult:
    """What a verdict reads of a twin's result, and nothing else of it."""
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
    """Model, control, prompt and probe of every shipped result of a model itself: all probes of what it opens on, and
    what Home shows of one prompt of each other kind for the first real one."""
    for name in (*MODELS, *REAL):
        loops = name in MODELS and n_passes(resolve(name)) != 1
        yield from ((name, "", example_of(name), probe) for probe in PROBES if loops or not probe.needs_passes)
    for prompt in KINDS.values():
        yield from ((REAL[0], "", prompt, probe) for probe in PROBES if probe.first_page)


def compared() -> Iterator[tuple[str, str, str, type[Probe]]]:
    """The same of the untrained twins that stand beside the models where two are compared."""
    for name in (*MODELS, *REAL):
        probes = (find(probe) for probe in COMPARED if find(probe).first_page)
        yield from ((name, "untrained", example_of(name), probe) for probe in probes)


if __name__ == "__main__":
    main(given(__doc__, "twins", *MODELS, *REAL, *(probe.name for probe in PROBES)))
