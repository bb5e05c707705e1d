"""`run`, `verify`, `cache`, `settings`, `app`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Literal

import typer

from .. import machine
from ..api.model import Model as Opened
from ..errors import ParameterError
from ..machine import uncollected
from ..probes import PROBES
from ..settings import ROOT, current
from .options import Memory, Model, Opening


def app_(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Where to listen; read docs/deploy.md first.")] = "127.0.0.1",
) -> None:
    """Serve the pages: replaces this process by `streamlit run app.py`."""
    machine.require_package("streamlit", "The app")
    current()  # refuses settings that cannot be read
    script = next(place for place in (ROOT / "ed_ui" / "app" / "app.py", ROOT / "app.py") if place.is_file())
    options = ["--server.address", address, "--server.port", str(port)]
    host = f"[{address}]" if ":" in address else address  # IPv6
    print(f"The effective-depth laboratory: http://{host}:{port}  (Ctrl-C stops it)", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "streamlit", "run", str(script), *options])


def run(
    probes: Annotated[list[str], typer.Argument(metavar="PROBE", help=", ".join(probe.name for probe in PROBES))],
    model: Annotated[str, typer.Option(help="A bundled name, a folder, a GGUF file, a hub id or ndif:ORG/NAME.")],
    prompts: Annotated[
        str, typer.Option(metavar="FILE.jsonl", help="One JSON object a line: text, and where needed answer, id.")
    ],
    out: Annotated[str, typer.Option(metavar="FILE.npz")],
    opening: Opening,
    set: Annotated[
        list[str] | None, typer.Option(metavar="PROBE.PARAMETER=VALUE", help="Any field of any probe; repeatable.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute everything and store nothing.")] = False,
    memory: Memory = "",
) -> None:
    """Run probes over the prompts of a file and write one .npz."""
    from ..cases.export import arrays
    from ..depth import say, sinks
    from ..depth.sample import READS, Sample
    from ..depth.verdict import verdict
    from ..disk import require_out, written
    from ..probes import find
    from ..prompts import read_jsonl
    from ..results.aggregate import counts_first
    from ..results.store import Store
    from ..sweeps.budget import parse

    settings = probe_settings(set or [], probes)
    chosen = [find(name).make(settings.get(name, {})) for name in dict.fromkeys(probes)]
    inputs = [prompts, *(value for of_probe in settings.values() for value in of_probe.values())]
    file = require_out(out, inputs, expected=".npz")
    examples, ref = read_jsonl(prompts), opening.ref(model)
    for probe in chosen:
        probe.check_idle()
        probe.check_precision(ref.precision)
    budget = parse(memory)
    store = None if no_cache else Store()
    requests = {probe: [probe.request(ref, prompt) for prompt in examples] for probe in chosen}
    stored = {r.key: store.get(r.key) for rs in requests.values() for r in rs} if store else {}
    results = {key: result for key, result in stored.items() if result is not None}
    by_prompt = zip(*requests.values())  # one prompt after the other: its probes share trace and walks
    todo = [(probe, r) for rs in by_prompt for probe, r in zip(requests, rs) if r.key not in results]
    if todo:
        with uncollected(for_good=True):
            import_module("..work.compute", __package__)
    Opened(ref, trust_kept=store is not None).compute_missing(todo, store, results, budget)
    import numpy as np

    forms = [prompt.form for prompt in examples]
    by_probe = {probe: [results[r.key] for r in rs] for probe, rs in requests.items()}
    with written(file) as handle:
        np.savez(handle, allow_pickle=False, **arrays(by_probe, forms))
    print(
        f"{file}: {say.count(len(chosen), 'probe')} on {say.count(len(examples), 'prompt')}, {len(todo)} computed, "
        f"{sum(map(len, requests.values())) - len(todo)} from the store"
    )
    by_name = {probe.name: of_probe for probe, of_probe in by_probe.items()}
    if sinks.PROBE in by_name:
        known = [of_one for result in by_name[sinks.PROBE] if (of_one := sinks.of_result(result)) is not None]
        print(f"{say.count(sum(map(len, known)), 'attention sink')} in {say.count(len(known), 'prompt')}")
    if by_name.keys() >= {*READS}:
        first = next(counts_first(probe) for probe in chosen if probe.name == READS[0])
        reached = verdict(Sample.of(*(by_name[name] for name in READS), first_token=first, forms=forms))
        print("\n".join(say.lines(reached)))


def probe_settings(pairs: list[str], names: list[str]) -> dict[str, dict[str, str]]:
    """Return `probe.parameter=value` texts as values by probe and parameter; raise a `ParameterError` for a probe that
    is not among `names`."""
    settings: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        probe, dot, parameter = name.partition(".")
        if not (equals and dot):
            raise ParameterError(f"--set {pair!r} is not of the form PROBE.PARAMETER=VALUE.")
        if probe not in names:
            raise ParameterError(
                f"--set {pair!r} names the probe '{probe}', which is not among those run ({', '.join(names)})."
            )
        settings.setdefault(probe, {})[parameter] = value
    return settings


def verify(model: Model, opening: Opening) -> int:
    """Open a model and print its residual identities, layer by layer."""
    from ..depth import certificate
    from ..errors import IdentityFailed
    from ..models import controls
    from ..models.opening import load_model
    from ..models.verify import check_device
    from ..models.verify import verify as measure

    opened = load_model(opening.ref(model))
    figures = opened.identities or measure(opened)

    def show(slope: float | None) -> str:
        return "below rounding" if slope is None else f"{slope:.6f}"

    name = opened.spec.name + (f" ({controls.label(opened.spec)})" if opened.spec.control else "")
    print(
        f"{name}: {opened.architecture.family}, {opened.n_layers} layers x {opened.d_model}, "
        f"{opened.spec.precision}, {figures.n_tokens} tokens"
    )
    print(f"read: {opened.architecture.modules_read()}")
    print(f"{'layer':>5}  {'error':>9}  {'slope attention':>15}  {'slope MLP':>15}")
    for layer, (miss, attn, mlp) in enumerate(zip(figures.miss, figures.slope_attn, figures.slope_mlp), 1):
        print(f"{layer:>5}  {miss:>9.2e}  {show(attn):>15}  {show(mlp):>15}")
    allowed = f"1 ± {figures.slope_limit:g}"
    print(f"limit  {figures.miss_limit:>9.0e}  {allowed:>15}  {allowed:>15}")
    rows = {
        "closure": f"{figures.closure:.2e}",
        "replay": ", ".join(f"batch {batch}: {miss:.2e}" for batch, miss in figures.replay.items()),
        "next to two rows": f"{figures.batch:.2e} (limit {figures.miss_limit:.0e})",
        "detour": f"{figures.detour:.2e}",
        "left behind": f"{figures.left_behind:.1e}",
        "suffix": "not possible" if figures.suffix is None else f"{figures.suffix:.2e}",
    }
    if figures.between:
        rows["between passes"] = ", ".join(f"{r} to {r + 1}: {miss:.2e}" for r, miss in enumerate(figures.between))
    sizes = {"d_vocab": opened.d_vocab, "d_model": opened.d_model}
    made = sizes | {"text": opened.text_identities, "identities": figures.to_json()}
    rows |= {row.lower(): text for row, text in certificate.text_rows(made)}
    if opened.architecture.note:
        rows["note"] = opened.architecture.note
    if on_device := check_device(opened, always=True):
        rows["against float32 on the CPU"] = on_device.unchecked or (
            f"layers {max(on_device.blocks):.2e}, logits {on_device.logits:.2e} (limit {on_device.limit:g})"
        )
    for row, text in rows.items():
        print(f"{row}: {text}")
    try:
        figures.require(opened.architecture)
        if on_device:
            on_device.require(str(opened.device))
    except IdentityFailed as error:
        print(error)
        return 2
    print("accepted")
    return 0


def cache(action: Literal["info", "clear"]) -> None:
    """Print what the store holds, or empty it."""
    from ..results.store import Store

    store = Store()
    if action == "clear":
        print(f"{store.clear()} results removed; case studies are untouched.")
        return
    info = store.info()
    problems = info.pop("problems")
    for name, value in info.items():
        print(f"{name:>9}: {value}")
    for problem in problems:
        print(f"ed_core: {problem}", file=sys.stderr)


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="All settings as the table of docs/deploy.md.")] = False,
) -> None:
    """Print the settings in force and where they are read from."""
    from .. import settings

    if markdown:
        print(settings.table())
        return
    config, place = settings.current(), settings.file()
    print(f"from {place or 'no file'}, and from the environment where a variable ED_… is set")
    width = max(map(len, type(config).model_fields))
    for name in type(config).model_fields:
        value = getattr(config, name)
        print(f"{name:>{width}}: {', '.join(value) if isinstance(value, tuple) else '' if value is None else value}")
