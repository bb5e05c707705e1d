"""The command line: `python -m ed_core run | verify | estimate | audit | fetch | models | cache | bench`. Exit code 2 and one sentence for everything refused."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

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
    _how_to_open(p)
    p.add_argument("--set", action="append", default=[], metavar="PROBE.PARAMETER=VALUE", help="any field of any probe; repeatable")
    p.add_argument("--no-cache", action="store_true", help="compute everything anew and store nothing")
    p.set_defaults(run=run)
    p = commands.add_parser("verify", help="open a model and print its residual identities, block by block")
    p.add_argument("model")
    _how_to_open(p)
    p.set_defaults(run=verify)
    p = commands.add_parser("estimate", help="what a model needs in memory and time, before anything is loaded")
    p.add_argument("model", help="a bundled name, a folder, or a hub id of the catalogue")
    p.add_argument("--precision", default="auto", metavar="P", help="auto (unless given), fp32, bf16, fp16, int8 or 4bit")
    p.add_argument("--tokens", type=int, default=64, help="length of the prompt")
    p.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument("--calibrate", action="store_true", help="measure this device's speed first (a second or two), and keep it")
    p.set_defaults(run=estimate)
    p = commands.add_parser("fetch", help="download a model from the hub; a broken-off download goes on where it stopped")
    p.add_argument("model", help="org/name, or org/name@revision")
    p.set_defaults(run=fetch)
    p = commands.add_parser("audit", help="the same prompts through several precisions: is a number an artefact of one?")
    p.add_argument("model")
    p.add_argument("--precisions", default="fp32,bf16,int8,4bit", metavar="P,P,…", help="two or more; the widest is the reference")
    p.add_argument("--prompts", metavar="FILE.jsonl", help="every fourth of the bundled ones unless given")
    p.add_argument("--device", default="cpu")
    p.add_argument("--out", metavar="FILE.npz", help="write curves, correlations and verdicts")
    p.set_defaults(run=audit)
    commands.add_parser("models", help="list the catalogue and the supported families").set_defaults(run=models)
    p = commands.add_parser("cache", help="what the store holds, or empty it")
    p.add_argument("action", choices=("info", "clear"))
    p.set_defaults(run=cache)
    p = commands.add_parser("bench", help="speed as ratios measured in one run")
    p.add_argument("names", nargs="*", help="which measurements (all unless given)")
    p.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    p.set_defaults(run=bench)
    return top


def _how_to_open(p: argparse.ArgumentParser) -> None:
    """The options that say how a model is to be opened."""
    p.add_argument("--precision", metavar="P", help="auto, fp32 (unless given), bf16, fp16, int8 or 4bit")
    p.add_argument("--dtype", help="another name for the unquantized precisions: float32, bfloat16 or float16")
    p.add_argument("--device", default="cpu", help="auto, cpu, cuda (as many GPUs as it takes), cuda:1 or mps")
    p.add_argument("--adapter", default="", metavar="FOLDER", help="a LoRA adapter to merge into the weights")
    p.add_argument("--offload", default="", metavar="FOLDER", help="where weights may lie that fit into no memory")


def _spec(args, name: str = "model"):
    """The model that the options name; what `auto` came to is said on stderr."""
    from .precision import asked
    from .sources import resolve

    wanted, device, free = asked(args.precision, args.dtype), args.device, None
    if device != "cpu":
        from . import placement

        device = placement.pick(device)
        free = placement.free_bytes(device)
    _here(getattr(args, name))
    spec = resolve(getattr(args, name), wanted, device, args.adapter, args.offload, free)
    if spec.why:
        print(f"ed_core: precision {spec.why}", file=sys.stderr)
    return spec


def _here(source: str) -> str:
    """Download a hub model that is not here, with a progress bar; returns its commit ("" for a folder)."""
    from tqdm import tqdm

    from . import hub
    from .sources import resolve

    spec = resolve(source)
    if hub.is_here(spec):
        return spec.revision
    with tqdm(unit="B", unit_scale=True, desc=spec.name, disable=not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return hub.ensure(spec, progress).revision


def fetch(args) -> None:
    print(f"{args.model}: {_here(args.model) or 'a folder, nothing to download'}")


def run(args) -> None:
    from .export import arrays
    from .probes import find
    from .prompts import read_jsonl
    from .store import Store

    settings = _settings(args.set, args.probes)
    probes = [find(name).make(settings.get(name, {})) for name in dict.fromkeys(args.probes)]
    out = Path(args.out)
    if not out.parent.is_dir():
        raise ParameterError(f"The folder {out.parent} of --out does not exist; make it first.")
    prompts, spec = read_jsonl(args.prompts), _spec(args)
    for probe in probes:
        probe.check_precision(spec.precision)
    store = None if args.no_cache else Store()
    requests = {probe: [probe.request(spec, prompt) for prompt in prompts] for probe in probes}
    found = {r.key: store.get(r.key) for rs in requests.values() for r in rs} if store else {}
    todo = [(probe, r) for probe, rs in requests.items() for r in rs if found.get(r.key) is None]
    if todo:
        _compute(todo, spec, store, found)
    import numpy as np

    partial = out.with_name(out.name + ".partial")
    with partial.open("wb") as handle:
        np.savez(handle, **arrays({probe: [found[r.key] for r in rs] for probe, rs in requests.items()}))
    partial.replace(out)
    print(f"{out}: {len(probes)} probes on {len(prompts)} prompts, {len(todo)} computed, {sum(map(len, requests.values())) - len(todo)} from the store")


def _compute(todo, spec, store, found) -> None:
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
                found[request.key] = compute.run(model, request)
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
    from . import sanity
    from .errors import IdentityFailed
    from .loading import load
    from .model import LanguageModel

    model = LanguageModel(*load(_spec(args)))
    figures = model.verify()
    show = lambda slope: "below rounding" if slope is None else f"{slope:.6f}"  # noqa: E731
    print(f"{model.spec.name}: {model.architecture.family}, {model.n_layers} blocks x {model.d_model}, {model.spec.precision}, {figures.n_tokens} tokens")
    print(f"read: {model.architecture.modules_read()}")
    print(f"{'block':>5}  {'miss':>9}  {'slope attention':>15}  {'slope MLP':>15}")
    for layer, row in enumerate(zip(figures.miss, figures.slope_attn, figures.slope_mlp)):
        print(f"{layer:>5}  {row[0]:>9.2e}  {show(row[1]):>15}  {show(row[2]):>15}")
    print(f"limit  {figures.miss_limit:>9.0e}  {'1 ± %g' % figures.slope_limit:>15}  {'1 ± %g' % figures.slope_limit:>15}")
    replay = ", ".join(f"batch {batch}: {miss:.2e}" for batch, miss in figures.replay.items())
    print(f"closure {figures.closure:.2e}   replay {replay}   left behind {figures.left_behind:.1e}")
    device = sanity.check(model, always=True)
    if device:
        print(f"against float32 on the CPU: {device.unchecked or f'blocks {max(device.blocks):.2e}, logits {device.logits:.2e} (limit {device.limit:g})'}")
    try:
        figures.require(model.architecture)
        if device:
            device.require(str(model.device))
    except IdentityFailed as error:
        print(error)
        return 2
    print("accepted")
    return 0


def audit(args) -> None:
    import numpy as np

    from . import audit as auditing
    from .demo import load_prompts
    from .prompts import read_jsonl
    from .sources import resolve
    from .store import Store
    from .types import Prompt

    bundled = [Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()[::4]]
    prompts = read_jsonl(args.prompts) if args.prompts else bundled
    precisions = list(dict.fromkeys(args.precisions.split(",")))
    if args.device != "cpu":
        from .placement import pick

        args.device = pick(args.device)
    _here(args.model)
    requests = auditing.plan(resolve(args.model, device=args.device), precisions, prompts)
    store, results = Store(), {}
    for precision, of_one in requests.items():
        found = {r.key: store.get(r.key) for r in of_one}
        if todo := auditing.todo(of_one, found):
            _compute(todo, of_one[0].models[0], store, found)
        results[precision] = [found[r.key] for r in of_one]
    outcome = auditing.compare(results, auditing.reference_of(precisions))
    if args.out:
        np.savez(args.out, **outcome.arrays())
    print(f"{args.model}: {len(prompts)} prompts through {', '.join(precisions)}")
    print("\n".join(auditing.table(outcome)))


def estimate(args) -> None:
    from .estimate import report
    from .sources import size_of

    device, free = args.device, None
    if device != "cpu":
        from . import placement

        device = placement.pick(device)
        free = placement.free_bytes(device)
    if args.calibrate:
        from .calibrate import calibrate

        calibrate(device)
    print("\n".join(report(args.model, size_of(args.model), args.precision, args.tokens, device, free)))


def models(args) -> None:
    from . import catalogue
    from .architectures import supported
    from .estimate import count
    from .sources import size_of

    group = ""
    for entry in catalogue.entries():
        if entry.group != group:
            group = entry.group
            print(f"{group}{' (gated: needs a token in HF_TOKEN)' if entry.gated else ''}:")
        size = size_of(entry.id)
        tied, mlp = "tied" if size.tied else "untied", f"MLP {size.d_mlp}"
        published = f"  published: {', '.join(entry.published)}" if entry.published else ""
        print(
            f"  {entry.id:<44} {count(size.parameters):>7}  {size.n_layers:>2} x {size.d_model:<5} {size.n_heads}/{size.n_kv_heads} heads of "
            f"{size.head_dim:<4} {mlp:<10} V {size.d_vocab} {tied}{published}"
        )
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
