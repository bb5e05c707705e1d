"""The packages that an installation takes, beyond the short list: their lock, known vulnerabilities, and a bill of
materials. `make lock`, `make audit`, `make sbom`; uv, pip-audit and cyclonedx-py come from the extra `audit`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT, LOCK = ROOT / "requirements.txt", ROOT / "requirements.lock"
BIN = Path(sys.executable).parent
TESTS = "# --- tests (the container image leaves these out)"
HEAD = """\
# Everything that is installed, with the hashes of its files on the package registry, for every system and Python from
# 3.11 on. Made from requirements.txt by `make lock`. torch is apart: its build and CUDA packages differ by index.
"""
OF_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")  # what begins like this comes with torch's own build
UNREACHED = 3  # exit code


def entries(text: str) -> dict[str, str]:
    """What a lock says of each package and range of Pythons, by its first line's beginning."""
    found = re.findall(r"^[\w.-]+==.*(?:\n[ \t].*)*", text, re.MULTILINE)
    return {one.partition(" \\")[0]: one for one in found}


def resolved(lines: list[str]) -> dict[str, str]:
    """All packages that these lines need, with hashes, as uv resolves them for every system."""
    options = ["--universal", "--python-version", "3.11", "--generate-hashes"]
    silent = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-config"]
    done = subprocess.run(
        [BIN / "uv", "pip", "compile", *options, *silent, "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"uv found no packages that go together: {done.stderr.strip()}")
    return {name: one for name, one in entries(done.stdout).items() if not OF_TORCH.match(name)}


def lock() -> None:
    """Write requirements.lock; the app's packages first, then what tests need beyond them."""
    short = SHORT.read_text(encoding="utf-8")
    app = resolved(short.partition("# --- tests")[0].splitlines())
    pinned = [name for name in app if " ; " not in name]
    every = resolved([*short.splitlines(), *pinned])
    if other := app.keys() - every.keys():
        sys.exit(f"The tests need other versions than the app: {', '.join(sorted(other))}; change requirements.txt.")
    tests = [one for name, one in every.items() if name not in app]
    LOCK.write_text("\n".join([HEAD, *app.values(), TESTS, *tests, ""]), encoding="utf-8")
    print(f"{LOCK.name}: {len(app)} packages of the app, {len(tests)} of the tests")


def locked() -> list[str]:
    """Name and version of each package in the lock, and torch."""
    torch = re.search(r"^torch==.*$", SHORT.read_text(encoding="utf-8"), re.MULTILINE)
    assert torch is not None
    return [torch[0], *entries(LOCK.read_text(encoding="utf-8"))]


def audit() -> int:
    """Ask whether vulnerabilities of the packages are known: 0 none, 1 some, `UNREACHED` where the database is out of
    reach."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(locked()))
        file.flush()
        command = [BIN / "pip-audit", "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
        done = subprocess.run([*command, "-r", file.name], capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        print(
            f"Not audited: the database of vulnerabilities could not be reached ({why}). Nothing is known either way."
        )
        return UNREACHED
    skipped = [one["name"] for one in found if "skip_reason" in one]
    if len(skipped) == len(found):
        why = next((one["skip_reason"] for one in found if "skip_reason" in one), "it has no packages")
        print(
            f"Not audited: what answered in place of the database of vulnerabilities knows none of the {len(found)} "
            f"packages ({why}). Nothing is known either way."
        )
        return UNREACHED
    known = [(one, bug) for one in found for bug in one.get("vulns", ())]
    for one, bug in known:
        print(
            f"{one['name']} {one['version']}: {bug['id']}, mended in {', '.join(bug['fix_versions']) or 'no release'}"
        )
    told = f"{len(known)} vulnerabilities are known of" if known else "No vulnerability is known of"
    print(f"{told} {len(found) - len(skipped)} packages{f'; not looked up: {skipped}' if skipped else ''}.")
    return int(bool(known))


def sbom() -> None:
    """Write the bill of materials of this release, CycloneDX 1.6."""
    text = "\n".join([locked()[0], LOCK.read_text(encoding="utf-8").partition(TESTS)[0]])
    options = ["--of", "JSON", "--sv", "1.6", "--output-reproducible"]
    done = subprocess.run(
        [BIN / "cyclonedx-py", "requirements", *options, "-"], input=text, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"cyclonedx-py did not make the bill of materials: {done.stderr.strip()}")
    bill = json.loads(done.stdout)
    version = re.search(r'__version__ = "(.*?)"', (ROOT / "ed_core" / "__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    about = {
        "type": "application",
        "name": "effective-depth-lab",
        "version": version[1],
        "bom-ref": "effective-depth-lab",
    }
    bill["metadata"]["component"] = about | {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    out = ROOT / "dist" / f"effective-depth-lab-{version[1]}.cdx.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{out.relative_to(ROOT)}: {len(bill['components'])} packages")


if __name__ == "__main__":
    kinds = {"lock": lock, "audit": audit, "sbom": sbom}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=kinds)
    sys.exit(kinds[parser.parse_args().what]())
