"""The command line: `python -m ed_core run | verify | models | cache | bench | case | backup | restore | check`. Exit code 2 and one sentence for everything refused."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import case_commands
from .errors import EffectiveDepthError, InputError, ParameterError, PromptFileError
from .probes import PROBES


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except EffectiveDepthError as error:
        print(f"ed_core: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ed_core: stopped; finished prompts are in the store, the same command goes on from there.", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m ed_core", description="Effective depth of language models, from the shell.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    p = commands.add_parser("run", help="run probes over the prompts of a file and write one .npz")
    p.add_argument("probes", nargs="+", help=", ".join(probe.name for probe in PROBES))
    p.add_argument("--model", required=True, help="a bundled name, a folder, or a hub id")
    p.add_argument("--prompts", required=True, metavar="FILE.jsonl", help="one JSON object a line: text, and where needed answer, id")
    p.add_argument("--out", required=True, metavar="FILE.npz")
    p.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    p.add_argument("--device", default="cpu")
    p.add_argument("--set", action="append", default=[], metavar="PROBE.PARAMETER=VALUE", help="any field of any probe; repeatable")
    p.add_argument("--no-cache", action="store_true", help="compute everything anew and store nothing")
    p.add_argument("--memory", default="", metavar="SIZE", help="what a probe may hold above model and trace, like 500M or 2G")
    p.set_defaults(run=run)
    p = commands.add_parser("verify", help="open a model and print its residual identities, block by block")
    p.add_argument("model")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--device", default="cpu")
    p.set_defaults(run=verify)
    commands.add_parser("models", help="list bundled models and supported families").set_defaults(run=models)
    p = commands.add_parser("cache", help="what the store holds, or empty it")
    p.add_argument("action", choices=("info", "clear"))
    p.set_defaults(run=cache)
    p = commands.add_parser("bench", help="speed as ratios measured in one run")
    p.add_argument("names", nargs="*", help="which measurements (all unless given)")
    p.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    p.set_defaults(run=bench)
    case_commands.add(commands)
    return top


def run(args) -> None:
    from .budget import parse
    from .export import arrays
    from .probes import find
    from .prompts import read_jsonl
    from .sources import resolve
    from .store import Store

    settings = _settings(args.set, args.probes)
    probes = [find(name).make(settings.get(name, {})) for name in dict.fromkeys(args.probes)]
    out = Path(args.out)
    if not out.parent.is_dir():
        raise ParameterError(f"The folder {out.parent} of --out does not exist; make it first.")
    prompts, spec = read_jsonl(args.prompts), resolve(args.model, args.dtype, args.device)
    store = None if args.no_cache else Store()
    requests = {probe: [probe.request(spec, prompt) for prompt in prompts] for probe in probes}
    found = {r.key: store.get(r.key) for rs in requests.values() for r in rs} if store else {}
    todo = [(probe, r) for probe, rs in requests.items() for r in rs if found.get(r.key) is None]
    memory = parse(args.memory)
    if todo:
        _compute(todo, spec, store, found, memory)
    import numpy as np

    partial = out.with_name(out.name + ".partial")
    with partial.open("wb") as handle:
        np.savez(handle, **arrays({probe: [found[r.key] for r in rs] for probe, rs in requests.items()}))
    partial.replace(out)
    print(f"{out}: {len(probes)} probes on {len(prompts)} prompts, {len(todo)} computed, {sum(map(len, requests.values())) - len(todo)} from the store")


def _compute(todo, spec, store, found, memory: int | None) -> None:
    """Check every prompt first, so that a bad one refuses the whole run before anything is computed; then compute and store."""
    from tqdm import tqdm

    from . import compute
    from .errors import StoreError
    from .prompts import max_tokens

    model = compute.Models().get(spec)
    for probe, request in todo:
        prompt = request.prompts[0]
        try:
            encoding = model.encode(prompt, max_tokens())
            probe.check(len(encoding), encoding.answer_start)
        except InputError as error:
            raise PromptFileError(f"Prompt {prompt.id or prompt.text[:40]!r}: {error}") from None
    with tqdm(todo, disable=not sys.stderr.isatty(), unit="prompt") as bar:
        for probe, request in bar:
            bar.set_description(probe.name)
            if found.get(request.key) is None:
                found[request.key] = compute.run(model, request, memory=memory)
                try:
                    if store:
                        store.put(found[request.key])
                except StoreError as error:
                    print(f"ed_core: {error}", file=sys.stderr)


def _settings(pairs: list[str], names: list[str]) -> dict[str, dict[str, str]]:
    """`--set probe.parameter=value` as a dict of dicts; refuses a probe that does not run."""
    settings: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        probe, dot, parameter = name.partition(".")
        if not (equals and dot):
            raise ParameterError(f"--set {pair!r} is not of the form PROBE.PARAMETER=VALUE.")
        if probe not in names:
            raise ParameterError(f"--set {pair!r} names the probe '{probe}', which is not among those run ({', '.join(names)}).")
        settings.setdefault(probe, {})[parameter] = value
    return settings


def verify(args) -> int:
    from .errors import IdentityFailed
    from .loading import load
    from .model import LanguageModel
    from .sources import resolve

    model = LanguageModel(*load(resolve(args.model, args.dtype, args.device)))
    figures = model.verify()
    show = lambda slope: "below rounding" if slope is None else f"{slope:.6f}"  # noqa: E731
    print(f"{model.spec.name}: {model.architecture.family}, {model.n_layers} blocks x {model.d_model}, {figures.dtype}, {figures.n_tokens} tokens")
    print(f"read: {model.architecture.modules_read()}")
    print(f"{'block':>5}  {'miss':>9}  {'slope attention':>15}  {'slope MLP':>15}")
    for layer, row in enumerate(zip(figures.miss, figures.slope_attn, figures.slope_mlp)):
        print(f"{layer:>5}  {row[0]:>9.2e}  {show(row[1]):>15}  {show(row[2]):>15}")
    print(f"limit  {figures.miss_limit:>9.0e}  {'1 ± %g' % figures.slope_limit:>15}  {'1 ± %g' % figures.slope_limit:>15}")
    replay = ", ".join(f"batch {batch}: {miss:.2e}" for batch, miss in figures.replay.items())
    print(f"closure {figures.closure:.2e}   replay {replay}   left behind {figures.left_behind:.1e}")
    print(f"suffix  {'not possible' if figures.suffix is None else f'{figures.suffix:.2e}'}: erasure {'reuses' if figures.suffix_holds else 'cannot reuse'} the prefix's keys and values")
    try:
        figures.require(model.architecture)
    except IdentityFailed as error:
        print(error)
        return 2
    print("accepted")
    return 0


def models(args) -> None:
    from .architectures import supported
    from .demo import MODELS

    print("bundled models:")
    for name, folder in MODELS.items():
        print(f"  {name:<14} {folder}")
    print("families: " + ", ".join(supported()))
    print("Any folder that save_pretrained writes, or a hub id, of one of these families can be opened.")


def cache(args) -> None:
    from .store import Store

    store = Store()
    if args.action == "clear":
        print(f"{store.clear()} results removed; kept things are untouched.")
        return
    for name, value in store.info().items():
        print(f"{name:>9}: {value}")


def bench(args) -> int:
    from .bench import main as measure

    return measure(args.names, args.check)


if __name__ == "__main__":
    sys.exit(main())
