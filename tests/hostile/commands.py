"""Every command with good arguments, and what may be put in the place of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SET = '{"text": "12 + 30 = ", "answer": "42"}\n{"text": "2 + 3 = ", "answer": "5"}\n' * 3
STUDY = """name = "s"
models = ["ed-demo-8"]
probes = ["contributions"]
[[sets]]
name = "a"
bundled = "mixed"
limit = 2
"""


@dataclass(frozen=True)
class Command:
    """`line` when all is well; `{in}` stands for the prompts' file. `out`: the option whose value is written, "" for
    the last argument, None where nothing is; `name`: of a good output."""

    line: str
    out: str | None = None
    name: str = ""
    folder: bool = False

    @property
    def argv(self) -> list[str]:
        return self.line.split()

    def with_out(self, out: str) -> list[str]:
        return [*self.argv, *([self.out] if self.out else []), out]


QUICK = {
    "app": Command("app --port 8501 --address 192.0.2.1"),  # of no machine: nothing is ever served
    "estimate": Command("estimate ed-demo-8 --tokens 64 --precision fp32"),
    "settings": Command("settings"),
    "cache": Command("cache info"),
    "models": Command("models"),
    "local": Command("local"),
    "case list": Command("case list --sort changed word"),
    "case show": Command("case show abcdefghij"),
    "case import": Command("case import none.edcase"),
    "case restore": Command("case restore abcdefghij"),
    "restore": Command("restore none.zip"),
    "study": Command("study s.toml --dry-run --shard 1/2 --processes 1", "--out", "folder", True),
    "fit, planned": Command(
        "fit affine --model ed-demo-8 --set {in} --memory 1G --dry-run --seed 1", "--out", "l.safetensors"
    ),
    "run, no prompts": Command("run contributions --model ed-demo-8 --prompts none --memory 1G", "--out", "r.npz"),
    "verify": Command("verify none --precision fp32 --device cpu --control shuffled --seed 1"),
    "audit, no prompts": Command(
        "audit ed-demo-8 --prompts none --precisions fp32,bf16 --device cpu", "--out", "a.npz"
    ),
    "fit jacobian, planned": Command(
        "fit jacobian --model ed-demo-8 --set {in} --max-tokens 5 --shard 1/2 --dry-run", "--out", "l.sums"
    ),
    "fit maps, planned": Command(
        "fit maps --model ed-demo-8 --other ed-demo-8 --set {in} --test {in} --dry-run", "--out", "m.npz"
    ),
    "fit replacement, merged": Command(
        "fit replacement --model ed-demo-8 --set {in} --merge none.sums", "--out", "r.npz"
    ),
    "claims, no set": Command("claims --model ed-demo-8 --set none --claim usefulness --prompts 1", "--out", "f", True),
    "card, no set": Command("card --model ed-demo-8 --set none --prompts 1", "--out", "f", True),
    "publish, no case": Command("publish static --case abcdefghij", "--out", "f", True),
    "deploy": Command(
        "deploy space o/n --hardware cpu-basi --variable A=b --secret HOME --bucket o/b", "--dry-run", "new", True
    ),
    "leaderboard": Command("leaderboard --also none --score average"),
    "card push": Command("card push new {card}"),
    "card pull": Command("card pull none"),
    "case delete": Command("case delete abcdefghij"),
    "empty-trash": Command("case empty-trash"),
    "check": Command("check"),
    "bench": Command("bench none"),
    "ready": Command("ready --url http://127.0.0.1:9"),
    "fetch": Command("fetch ed-demo-8"),
    "reproduce": Command("reproduce hu2025 --models ed-demo-8 --sets none --limit 1 --dry-run", "--out", "f", True),
}
WRITERS = {
    "run": Command("run contributions --model ed-demo-8 --prompts {in} --no-cache", "--out", "r.npz"),
    "audit": Command("audit ed-demo-8 --prompts {in} --precisions fp32,bf16", "--out", "a.npz"),
    "fit": Command("fit affine --model ed-demo-8 --set {in}", "--out", "l.safetensors"),
    "backup": Command("backup", "", "b.zip"),
    "case export": Command("case export {case}", "", "c.html"),
    "study export": Command("study {study} --export", "", "n.npz"),
    "claims": Command("claims --model ed-demo-8 --set {in} --claim usefulness --prompts 1", "--out", "f", True),
    "card": Command("card --model ed-demo-8 --set {in} --prompts 1", "--out", "f", True),
    "publish": Command("publish static --card {card}", "--out", "f", True),
    "study": Command("study s.toml", "--out", "f", True),
    "deploy": Command("deploy space o/n", "--dry-run", "new", True),
}
HEAVY = {  # which may compute, or open a model, when one of their words is another
    "study", "fit, planned", "run, no prompts", "verify", "audit, no prompts", "fit jacobian, planned",
    "fit maps, planned", "fit replacement, merged", "claims, no set", "card, no set", "reproduce",
}  # fmt: skip
WORDS = (
    "", "x", "-1", "0", "0.5", "1e999", "9" * 400, "9" * 5000, "nan", "x" * 300, "x" * 5000, "../../etc/passwd",
    "/dev/zero", "/dev/null", "/proc/self/mem", "/", ".", "~",
    "~nobody/x", "a\nb", "\x1b[2J", "\u2028", "\udce4", "<script>", "{}",
    "{0.__class__}", "%s%n", "--", "-h", "fp32,zz", ",", "1/0", "0/0", "2/1", "1/999999", "cuda:99", "cpu", "org/name",
    "org/name@" + "a/" * 40, "ed-demo-8@nosuchbranch", "pypi:x==1", "a=b", "a.b=c",
    "residual_erasure.background=/dev/zero",
    "in.jsonl", "pipe", "link", "folder",
)  # fmt: skip


def lay(folder: Path) -> None:
    """What the commands find in their folder."""
    import os

    (folder / "in.jsonl").write_text(SET)
    (folder / "s.toml").write_text(STUDY)
    (folder / "folder").mkdir()
    (folder / "full").mkdir()
    (folder / "full" / "x").write_text("x")
    os.mkfifo(folder / "pipe")
    (folder / "precious").write_text("precious")
    (folder / "locked").mkdir(mode=0o500)
    (folder / "link").symlink_to(folder / "precious")
    (folder / "nowhere").symlink_to("/nowhere/at/all")


OUTS = (
    "", "in.jsonl", "./in.jsonl", "pipe", "link", "nowhere", "folder", "/dev/null", "/dev/full", "no/such/folder/x",
    "x" * 300, "locked/x",
)  # fmt: skip
NO_FOLDERS = ("locked/x", "locked/x/y", "", "in.jsonl", "pipe", "nowhere", "link", "/dev/null", "in.jsonl/x", "x" * 300)
