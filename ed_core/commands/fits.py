"""`python -m ed_core fit KIND …`: what is fitted to models on a prompt set, resumable."""

from __future__ import annotations

import argparse

from .. import bounds
from ..errors import ParameterError
from ..runs.spec import JACOBIAN_TOKENS, FitRun, Opened
from ..sources.sizes import asked_precision
from .models import how_to_open
from .runs import RESUMED, Commands, run, whole
from .studies import shard_of

SAME = "the same as A's unless given"


def add(commands: Commands) -> None:
    """Register the command with the parser's `commands`."""
    p = commands.add_parser(
        "fit", help="fit a lens, linear maps between two models, or maps in the layers' place, on a prompt set"
    )
    kinds = p.add_subparsers(required=True, metavar="KIND")
    p = kinds.add_parser("affine", help="the affine lens: least squares from the stream at every depth to the last")
    p.add_argument(
        "--rank",
        type=whole("--rank", -bounds.WHOLE),
        metavar="R",
        help="keep the matrices to this rank, in half precision: small files",
    )
    _of_all_kinds(p, "affine", ".safetensors")
    p = kinds.add_parser("jacobian", help="the Jacobian lens: how the last residual answers to changes, on average")
    p.add_argument(
        "--max-tokens",
        type=whole("--max-tokens", -bounds.WHOLE),
        default=JACOBIAN_TOKENS,
        metavar="N",
        help="read so many of a prompt's tokens",
    )
    _of_all_kinds(p, "jacobian", ".safetensors")
    p = kinds.add_parser(
        "maps", help="between two models of one tokenizer: how well each tap of B is read off each of A's"
    )
    p.add_argument("--other", required=True, metavar="B", help="the second model, with the same tokenizer")
    p.add_argument("--other-precision", metavar="P", help=SAME)
    p.add_argument("--other-control", default="", metavar="KIND", help="a twin in B's place: untrained or shuffled")
    p.add_argument("--other-seed", type=whole("--other-seed", 0), metavar="N", help="which twin of B (0 unless given)")
    _of_all_kinds(p, "maps", ".npz")
    p = kinds.add_parser("replacement", help="within one model: the loss with each layer replaced by a linear map")
    _of_all_kinds(p, "replacement", ".npz")


def _of_all_kinds(p: argparse.ArgumentParser, kind: str, ending: str) -> None:
    """The options of every fit; `ending` is its file's."""
    p.add_argument("--model", required=True, metavar="A", help="a bundled name, a folder, or a hub id")
    how_to_open(p)
    p.add_argument("--set", required=True, metavar="FILE.jsonl", help="the prompts to fit on")
    p.add_argument("--test", metavar="FILE.jsonl", help="the prompts to judge on; every fifth of --set unless given")
    p.add_argument("--out", required=True, metavar=f"FILE{ending}")
    part = p.add_mutually_exclusive_group()
    part.add_argument(
        "--shard", default="", metavar="I/N", help="sum up the I-th of N parts of the prompts, into --out FILE.sums"
    )
    part.add_argument(
        "--merge",
        nargs="+",
        default=[],
        metavar="FILE.sums",
        help="add what all shards have summed up, instead of reading the prompts of --set again",
    )
    p.add_argument("--memory", default="", metavar="SIZE", help="what the sums may hold at once, like 500M or 20G")
    p.add_argument("--dry-run", action="store_true", help="say what the sums take and in how many passes, and stop")
    p.add_argument("--progress", action="store_true", help="say every per cent on a line of its own")
    p.set_defaults(run=fit, kind=kind, stopped=RESUMED)


def fit(args: argparse.Namespace) -> int:
    if args.dry_run:
        return _dry_run(args)
    spec = FitRun(
        fit=args.kind,
        model=_opened(args, args.model, args.precision, args.control, args.seed, args.adapter),
        other=_other(args) if args.kind == "maps" else None,
        prompts=args.set,
        test=args.test or "",
        out=args.out,
        shard=shard_of(args.shard) if args.shard else None,
        merge=tuple(args.merge),
        memory=args.memory,
        rank=getattr(args, "rank", None),
        max_tokens=getattr(args, "max_tokens", JACOBIAN_TOKENS),
    )
    return run(spec, lines=args.progress)


def _opened(
    args: argparse.Namespace, source: str, precision: str | None, control: str, seed: int | None, adapter: str
) -> Opened:
    """A model as the options name it."""
    if seed is not None and not control:
        raise ParameterError("--seed is a control's; give --control untrained or --control shuffled with it.")
    return Opened(
        source=source,
        precision=asked_precision(precision, args.dtype),
        device=args.device,
        adapter=adapter,
        offload=args.offload,
        control=control,
        control_seed=seed or 0,
    )


def _other(args: argparse.Namespace) -> Opened:
    """Model B: its own precision and control, A's device."""
    return _opened(args, args.other, args.other_precision or args.precision, args.other_control, args.other_seed, "")


def _size(source: str) -> tuple[int, int]:
    """Layers and width of a model, from its config alone."""
    from ..sources.specs import size_of

    size = size_of(source)
    return size.n_layers, size.d_model


def _dry_run(args: argparse.Namespace) -> int:
    """What would be held, without opening a model: of `--memory`, else of a lens's usual share or of what is free."""
    from ..fits import measured
    from ..machine import ROOM, free_memory
    from ..sweeps.budget import parse

    memory = parse(args.memory) or (measured.BYTES if args.kind in ("affine", "jacobian") else None)
    if memory is None and args.device != "cpu":
        from ..models import devices

        memory = int(ROOM * devices.free_bytes(devices.pick(args.device)))
    memory = memory or int(ROOM * free_memory())
    sizes = [_size(source) for source in (args.model, *([args.other] if args.kind == "maps" else []))]
    if args.kind == "maps":
        layers, widths = zip(*sizes, strict=True)
        planned = measured.plan_of_maps(layers, widths, memory)
    else:
        planned = measured.OF_ONE[args.kind](*sizes[0], memory)
    print(planned.sentence())
    return 0
