"""The commands around a model's size and precision (fetch, estimate, models), and what all commands share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from .. import untrusted
from ..errors import ParameterError
from ..machine import free_memory, gigabytes
from ..models.ref import ModelRef
from ..notebook import model as opened
from ..types import ModelSpec

DEVICE = "auto (a GPU where there is one; unless given), cpu, cuda (as many GPUs as it takes), cuda:1 or mps"
MODEL = "a bundled name, a folder, a GGUF file or a hub id"
STORED = "stopped; finished prompts are in the store, the same command goes on from there."
RESUMED = "stopped; the same command goes on from what was finished."


def whole(option: str, least: int, most: int = untrusted.WHOLE) -> Callable[[str], int]:
    """The type of an option that is a whole number within bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise ParameterError(
                f"{option} is {text[:40].strip() or repr(text[:40])}; expected {least} to {most}, a whole number."
            )
        return int(text)

    return read


def only(args: argparse.Namespace, why: str, *used: str) -> None:
    """Refuse an option that was given and is none of those `used`; `why` not. `args.parser`: what read them."""
    given = (name for name, value in vars(args).items() if value != args.parser.get_default(name))
    if over := next((name for name in given if name not in used), ""):
        raise ParameterError(f"{why}; leave --{over.replace('_', '-')} out.")


@runtime_checkable
class Commands(Protocol):
    """What `ArgumentParser.add_subparsers` returns."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """The parser of a new command."""


def precision(text: str) -> str:
    """The type of an option that is a precision."""
    from ..models.sizes import PRECISIONS

    if text != "auto" and text not in PRECISIONS:
        raise ParameterError(f"The precision is {text!r}; expected auto or one of {', '.join(PRECISIONS)}.")
    return PRECISIONS.get(text, text)


def how_to_open(p: argparse.ArgumentParser) -> None:
    """The options that say how a model is to be opened."""
    about = "auto, fp32 (unless given), bf16, fp16, int8 or 4bit; also float32, bfloat16, float16"
    p.add_argument("--precision", "--dtype", default="fp32", type=precision, metavar="P", help=about)
    p.add_argument("--device", default="auto", help=DEVICE)
    p.add_argument("--adapter", default="", metavar="FOLDER", help="a LoRA adapter to merge into the weights")
    p.add_argument("--offload", default="", metavar="FOLDER", help="where weights may lie that fit into no memory")
    p.add_argument(
        "--control",
        default="",
        metavar="KIND",
        help="a twin in the model's place: untrained (random weights) or shuffled (its layers in random order)",
    )
    p.add_argument("--seed", type=whole("--seed", 0), metavar="N", help="which twin (0 unless given)")


def opened_as(args: argparse.Namespace) -> ModelRef:
    """The model that the options name; what `auto` came to is said on stderr."""
    seed = args.seed or 0
    if args.seed is not None and not args.control:
        raise ParameterError("--seed is a control's; give --control untrained or --control shuffled with it.")
    spec = opened.ref_of(
        args.model,
        args.precision,
        args.device,
        args.adapter,
        control=args.control,
        control_seed=seed,
        offload=args.offload,
    )
    if spec.why:
        print(f"ed_core: precision {spec.why}", file=sys.stderr)
    return spec


def fetch(args: argparse.Namespace) -> None:
    ref = opened.fetch(args.model)
    if packing := ref.packing:
        print(f"{args.model}: here, {packing} in the file, converted to float32 in {ref.place}")
    else:
        print(f"{args.model}: {ref.revision or 'a folder, nothing to download'}")


def estimate(args: argparse.Namespace) -> None:
    from ..models.sizes import PRECISIONS, WIDEST_FIRST
    from ..probes import PROBES
    from ..work import estimate as of

    if not (ref := ModelRef.named(args.model)).weights_here:
        raise ParameterError(
            f"{args.model[:80]} takes no memory for weights here, and how fast it is there is not known."
        )
    device, free = opened.on(args.device)
    if args.calibrate:
        from ..models.devices import measure_rates

        of.save_rates(device.partition(":")[0], measure_rates(device))
    size, free = ref.size(), free_memory() if free is None else free
    counted = "" if size.exact else "; family unknown here, counted as a Llama"
    print(
        f"{args.model}: {size.family}, {size.n_layers} layers x {size.d_model}, {of.count(size.parameters)} parameters "
        f"({of.count(size.block)} in each layer){counted}"
    )
    precision = args.precision
    if precision == "auto":
        precision, why = of.choose(size, args.tokens, device, free)
        print(f"auto takes {why}")
    precision = PRECISIONS.get(precision, precision)
    print("weights:", ", ".join(f"{p} {gigabytes(size.weight_bytes(p))}" for p in WIDEST_FIRST))
    print(f"{precision} on {device}, {args.tokens} tokens:")
    row = "  {:<22} {:>12} {:>10} {:>8}".format
    print(row("probe", "activations", "in all", "time"))
    for probe in PROBES:
        each = of.estimate(size, precision, args.tokens, device, free, [probe()])
        in_all, seconds = gigabytes(each.peak), of.duration(each.needs[0].seconds)
        too_large = "" if each.fits else "  too large"
        print(row(probe.name, gigabytes(each.needs[0].activations), in_all, seconds) + too_large)
    found = of.estimate(size, precision, args.tokens, device, free)
    speeds = "a measurement of this device" if found.calibrated else "default speeds; --calibrate measures this device"
    print(f"times rest on {speeds}")
    need = f"{gigabytes(found.peak)} needed for the first page, {gigabytes(free)} free on {device}"
    others = ", ".join(of.fitting(size, free, args.tokens, device)) or "no precision; take a smaller model or --offload"
    print(f"fits: {need}" if found.fits else f"too large: {need}, a tenth of which stays free; what fits: {others}")


def models(args: argparse.Namespace) -> None:
    if args.families:
        return _families()
    from ..depth.published import sets_of
    from ..models import catalogue
    from ..models.families import supported
    from ..work.estimate import count

    group = ""
    for entry in catalogue.entries():
        if entry.group != group:
            group = entry.group
            print(f"{group}{' (gated: needs a token in HF_TOKEN)' if entry.gated else ''}:")
        size = ModelRef.of(ModelSpec(entry.id)).size()
        tied, mlp = "tied" if size.tied else "untied", f"MLP {size.d_mlp}"
        passes = f"  in {size.passes} passes" if size.passes > 1 else ""
        published = f"  published: {', '.join(sets)}" if (sets := sets_of(entry.id)) else ""
        print(
            f"  {entry.id:<44} {count(size.parameters):>7}  {size.n_layers:>2} x {size.d_model:<5} "
            f"{size.n_heads}/{size.n_kv_heads} heads of "
            f"{size.head_dim:<4} {mlp:<10} V {size.d_vocab} {tied}{passes}{published}"
        )
    print("families: " + ", ".join(supported()))
    print(
        "Any folder that save_pretrained writes, or a hub id, of one of these families can be opened; another is tried "
        "by its sums (--families: where each is read)."
    )


def _families() -> None:
    from ..models.families import FAMILIES, REFUSED

    for family in FAMILIES:
        print(f"{family.family} ({', '.join(family.model_types)}): {family.modules_read()}; norms {family.norms}")
    print(f"refused by name: {', '.join(sorted(REFUSED))}")
