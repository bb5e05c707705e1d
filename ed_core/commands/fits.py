"""`python -m ed_core fit KIND …`: what is fitted to models on a prompt set, resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..errors import ParameterError
from ..types import Prompt
from .models import how_to_open, opened_as
from .studies import shard_of

SAME = "the same as A's unless given"


def add(commands) -> None:
    """Register the command with the parser's `commands`."""
    p = commands.add_parser(
        "fit", help="fit a lens, linear maps between two models, or maps in the layers' place, on a prompt set"
    )
    kinds = p.add_subparsers(required=True, metavar="KIND")
    p = kinds.add_parser("affine", help="the affine lens: least squares from the stream at every depth to the last")
    p.add_argument(
        "--rank", type=int, metavar="R", help="keep the matrices to this rank, in half precision: small files"
    )
    _of_all_kinds(p, ".safetensors", affine)
    p = kinds.add_parser("jacobian", help="the Jacobian lens: how the last residual answers to changes, on average")
    p.add_argument("--max-tokens", type=int, default=128, metavar="N", help="read so many of a prompt's tokens")
    _of_all_kinds(p, ".safetensors", jacobian)
    p = kinds.add_parser(
        "maps", help="between two models of one tokenizer: how well each tap of B is read off each of A's"
    )
    p.add_argument("--other", required=True, metavar="B", help="the second model, with the same tokenizer")
    p.add_argument("--other-precision", metavar="P", help=SAME)
    p.add_argument("--other-control", default="", metavar="KIND", help="a twin in B's place: untrained or shuffled")
    p.add_argument("--other-seed", type=int, metavar="N", help="which twin of B (0 unless given)")
    _of_all_kinds(p, ".npz", maps)
    p = kinds.add_parser("replacement", help="within one model: the loss with each layer replaced by a linear map")
    _of_all_kinds(p, ".npz", replacement)


def _of_all_kinds(p: argparse.ArgumentParser, ending: str, run: Callable) -> None:
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
        type=Path,
        metavar="FILE.sums",
        help="add what all shards have summed up, instead of reading the prompts of --set again",
    )
    p.add_argument("--memory", default="", metavar="SIZE", help="what the sums may hold at once, like 500M or 20G")
    p.add_argument("--dry-run", action="store_true", help="say what the sums take and in how many passes, and stop")
    p.add_argument("--progress", action="store_true", help="say every per cent on a line of its own")
    p.set_defaults(run=run, ending=ending)


def affine(args) -> int:
    from ..fits import affine as fitting
    from ..fits import measured

    if args.rank is not None and args.rank < 1:
        raise ParameterError(f"--rank is {args.rank}; expected 1 at least.")
    if args.rank and args.shard:
        raise ParameterError("--rank is of the lens that --merge writes, a shard has none; leave it out here.")

    def fit(*asked, memory):
        return fitting.fit(*asked, memory=memory or fitting.BYTES, rank=args.rank, merge=args.merge)

    def sum_up(*asked, memory):
        return fitting.sum_up(*asked, memory=memory or fitting.BYTES)

    return _lens(args, fit, sum_up, measured.plan_of_affine)


def jacobian(args) -> int:
    from ..fits import jacobian as fitting
    from ..fits import measured

    most = args.max_tokens
    if most <= fitting.FIRST + 1:
        raise ParameterError(f"--max-tokens is {most}; expected {fitting.FIRST + 2} at least.")

    def fit(*asked, memory):
        return fitting.fit(*asked, memory=memory, max_tokens=most, merge=args.merge)

    def sum_up(*asked, memory):
        return fitting.sum_up(*asked, memory=memory, max_tokens=most)

    return _lens(args, fit, sum_up, measured.plan_of_jacobian)


def _lens(args, fit: Callable[..., dict], sum_up: Callable[..., range], planned: Callable) -> int:
    from ..fits.measured import BYTES

    if args.dry_run:
        return _dry_run(args, lambda memory: planned(*_size(args.model), memory), BYTES)
    from ..depth import lenses
    from ..models.opening import open_model

    prompts, test, out, memory = _asked(args)
    model = open_model(opened_as(args))
    if args.shard:
        return _sum_up(args, sum_up, model, prompts, out, test, memory)
    with progress(args) as tick:
        made = fit(model, prompts, out, test, tick, memory=memory)
    print(f"{out}: {lenses.certified(made['kind'], made)}")
    return 0


def maps(args) -> int:
    from ..fits import measured

    def planned(memory: int) -> measured.Plan:
        a, b = _size(args.model), _size(args.other)
        return measured.plan_of_maps((a[0], b[0]), (a[1], b[1]), memory)

    if args.dry_run:
        return _dry_run(args, planned)
    from ..depth import matching
    from ..fits import maps as fitting
    from ..models.opening import open_model

    prompts, test, out, memory = _asked(args)
    specs = opened_as(args), opened_as(_other(args))
    a, b = (open_model(spec) for spec in specs)
    print(f"{fitting.plan(a, b, memory).sentence()}", file=sys.stderr)
    if args.shard:
        return _sum_up(args, partial(fitting.sum_up, a), b, prompts, out, test, memory)
    with progress(args) as tick:
        found = fitting.fit(a, b, prompts, out, test, tick, memory, args.merge)
    print(_told(out, found.tokens, found.test_tokens, found.certificate))
    print(f"{matching.sentence(found)} {matching.reasons(found)}")
    return 0


def replacement(args) -> int:
    from ..fits import measured

    if args.dry_run:
        return _dry_run(args, lambda memory: measured.plan_of_replacement(*_size(args.model), memory))
    from ..depth import matching
    from ..fits import replacement as fitting
    from ..models.opening import open_model

    prompts, test, out, memory = _asked(args)
    model = open_model(opened_as(args))
    print(f"{fitting.plan(model, memory).sentence()}", file=sys.stderr)
    if args.shard:
        return _sum_up(args, fitting.sum_up, model, prompts, out, test, memory)
    with progress(args) as tick:
        found = fitting.fit(model, prompts, out, test, tick, memory, args.merge)
    print(_told(out, found.tokens, found.test_tokens, found.certificate))
    print(matching.said_of_replacement(found))
    return 0


def _sum_up(args, sum_up: Callable[..., range], model, prompts, out: Path, test, memory: int | None) -> int:
    """One shard, and what to do with its file."""
    with progress(args) as tick:
        some = sum_up(model, prompts, out, shard_of(args.shard), test, tick, memory=memory)
    print(
        f"{out}: the prompts {some.start + 1} to {some.stop} are summed up; with the other shards' files, --merge it."
    )
    return 0


def _asked(args) -> tuple[list[Prompt], list[Prompt] | None, Path, int | None]:
    """The prompts to fit on and to judge on, the file to write, and the memory; refused before a model is opened."""
    from ..fits import shards
    from ..prompts import read_jsonl
    from ..sweeps.budget import parse

    out, ending = Path(args.out), shards.ENDING if args.shard else args.ending
    if out.suffix != ending:
        raise ParameterError(f"--out is {args.out!r}; expected a file that ends in {ending}.")
    shard_of(args.shard)
    if not out.parent.is_dir():
        raise ParameterError(f"The folder {out.parent} of --out does not exist; make it first.")
    return read_jsonl(args.set), read_jsonl(args.test) if args.test else None, out, parse(args.memory)


def _other(args) -> argparse.Namespace:
    """The options as they stand for model B: its own precision and control, A's device."""
    own = {
        "model": args.other,
        "precision": args.other_precision or args.precision,
        "control": args.other_control,
        "seed": args.other_seed,
        "adapter": "",
    }
    return argparse.Namespace(**vars(args) | own)


def _size(source: str) -> tuple[int, int]:
    """Layers and width of a model, from its config alone."""
    from ..sources.specs import size_of

    size = size_of(source)
    return size.n_layers, size.d_model


def _dry_run(args, planned: Callable, usual: int | None = None) -> int:
    """What would be held, without opening a model; `usual`: the memory where none is given, else what is free."""
    from ..memory import ROOM, free_memory
    from ..sweeps.budget import parse

    memory = parse(args.memory) or usual
    if memory is None and args.device != "cpu":
        from ..models import placement

        memory = int(ROOM * placement.free_bytes(placement.pick(args.device)))
    print(planned(memory or int(ROOM * free_memory())).sentence())
    return 0


@contextmanager
def progress(args) -> Iterator[Callable[..., None]]:
    """What is told the share that is done, and perhaps of what: a bar on a terminal, lines where they are asked for."""
    from tqdm import tqdm

    with tqdm(total=100, disable=args.progress or not sys.stderr.isatty(), unit="%") as bar:
        said = -1

        def tick(share: float, what: str = "") -> None:
            nonlocal said
            done = int(100 * share)
            if args.progress and done > said:
                said = done
                print(f"{done} %{f' · {what}' if what else ''}", file=sys.stderr, flush=True)
            if what:
                bar.set_description(what, refresh=False)
            bar.update(done - bar.n)

        yield tick


def _told(out: Path, tokens: int, test_tokens: int, certificate) -> str:
    notes = "".join(f" {note}" for note in certificate["notes"])
    return f"{out}: fitted on {tokens} tokens, judged on {test_tokens} held-out ones.{notes}"
