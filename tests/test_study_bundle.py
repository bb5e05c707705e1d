"""`.edstudy`: what goes out comes back the same elsewhere; what is damaged or hostile is refused and leaves nothing."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from unittest.mock import Mock

import numpy as np
import pyarrow
import pytest
from archives import MANIFEST, resealed
from pyarrow import parquet
from shell import refused

from ed_core.cli import main
from ed_core.errors import ImportRefused, OtherVersion, StudyError
from ed_core.studies import bundle, plan, report, running, study, tables
from ed_core.studies.items import SUMS, open_folder
from ed_core.types import canonical_json

TOML = (
    'name = "mine"\nmodels = ["ed-demo-8", "ed-demo-16"]\nprobes = ["contributions", "logit_lens"]\nchunk = 3\n'
    '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlevels = [2, 3]\nper_level = 3\n'
)


@pytest.fixture(scope="module")
def computed(made_once):
    """A finished study's folder, with an item that is of no plan any more."""

    def make(here):
        made, out = plan.make(study.parse(TOML), here), here / "out"
        plan.write_plan(made, out)
        running.run(made, out)
        report.write(out)
        stale = out / "items" / open_folder(out).plan["models"][0]["digest"]
        stale.mkdir(parents=True)
        (stale / f"{'0' * 16}.parquet").write_bytes(b"of another plan")

    return made_once("bundled", make) / "out"


@pytest.fixture(scope="module")
def good(computed):
    return bundle.packed(computed)


def contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def made_of(files: dict[str, bytes], told=lambda manifest: None, sealed: bool = True) -> bytes:
    """A bundle of these files, hashes made anew unless not `sealed`; `told` changes the manifest."""
    manifest = json.loads(files[MANIFEST])
    members = {name: data for name, data in files.items() if name != MANIFEST}
    if sealed:
        manifest["members"] = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    told(manifest)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, MANIFEST: canonical_json(resealed(manifest)).encode()}.items():
            archive.writestr(name, content)
    return data.getvalue()


def changed_sums(files, change) -> dict[str, bytes]:
    """The files with other sums, a row group per model as before."""
    old = parquet.ParquetFile(io.BytesIO(files[SUMS]))
    groups = [change(old.read_row_group(i)) for i in range(old.num_row_groups)]
    data = io.BytesIO()
    with parquet.ParquetWriter(data, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    return files | {SUMS: data.getvalue()}


def test_what_goes_out_comes_back_the_same(computed, good, tmp_path):
    folder = open_folder(computed)
    expected = folder.digest()
    assert bundle.unpack(io.BytesIO(good), tmp_path / "there") == expected
    again = open_folder(tmp_path / "there")
    assert again.digest() == expected and dict(again.plan) == dict(folder.plan)
    assert tables.stored(again).equals(tables.stored(folder)) and tables.summary(again).equals(tables.summary(folder))
    assert (again.out / "report.md").read_bytes() == (computed / "report.md").read_bytes()
    assert bundle.packed(again.out) == good, "the same bytes for the same study"
    assert set(contents(good)) == {"study.toml", "plan.json", SUMS, MANIFEST}
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_the_shell_writes_and_opens_it(computed, tmp_path, capsys):
    file = tmp_path / "mine.EDSTUDY"
    assert main(["study", str(computed), "--export", str(file)]) == 0
    words = ["study", str(file), "--out", str(tmp_path / "there")]
    assert main([*words, "--dry-run"]) == 0 and not (tmp_path / "there").exists()
    assert main(words) == 0
    assert (tmp_path / "there" / "plan.json").read_bytes() == (computed / "plan.json").read_bytes()
    capsys.readouterr()
    refused(capsys, ["study", file, "--out", tmp_path / "there"], "is there already")
    refused(capsys, ["study", tmp_path / "no.edstudy", "--out", tmp_path / "x"], "no.edstudy cannot be read")


def _shape(table):
    told = json.loads(table.schema.metadata[b"models"])
    for one in told.values():
        one["shapes"]["contributions.attn_cos.sum"] = [2, 40]
    return table.replace_schema_metadata({b"models": json.dumps(told)})


def _column(name, value):
    def of(table):
        values = pyarrow.array([value] * table.num_rows)
        return table.set_column(table.column_names.index(name), name, values)

    return lambda files: changed_sums(files, of)


def _plan(change):
    def of(files):
        told = json.loads(files["plan.json"])
        change(told)
        return files | {"plan.json": json.dumps(told).encode()}

    return of


DAMAGE = {
    "a hash": (lambda f: f | {SUMS: f[SUMS] + b"."}, False, "does not have its hash"),
    "a path": (lambda f: f | {"../evil": b"x"}, True, "'../evil' is no member of a study"),
    "an absolute path": (lambda f: f | {"/tmp/evil": b"x"}, True, "is no member of a study"),
    "a program": (lambda f: f | {"run.py": b"x"}, True, "is no member of a study"),
    "unlisted": (lambda f: f | {"report.md2": b"x"}, False, "not those it lists"),
    "no plan": (lambda f: {n: d for n, d in f.items() if n != "plan.json"}, True, "plan.json or sums.parquet is"),
    "a plan of other types": (_plan(lambda p: p["sets"][0].update(left_out="0")), True, "is damaged"),
    "too few chunks": (_plan(lambda p: p["sets"][0]["chunks"].pop()), True, "is damaged"),
    "levels": (_plan(lambda p: p["sets"][0]["levels"].pop()), True, "is damaged"),
    "an unknown probe": (_plan(lambda p: p["probes"][0].update(name="x")), True, "its plan names 'x'"),
    "a strange model": (_column("model", "0" * 16), True, "is damaged"),
    "no parquet": (lambda f: f | {SUMS: b"PAR1 and nothing"}, True, "is damaged"),
    "half a file": (lambda f: f | {SUMS: f[SUMS][:-200]}, True, "is damaged"),
    "rows": (lambda f: changed_sums(f, lambda t: pyarrow.concat_tables([t, t[:1]])), True, "other rows or columns"),
    "a shape": (lambda f: changed_sums(f, _shape), True, "is damaged"),
    "texts": (_column("logit_lens.echo", "a"), True, "is damaged"),
    "another number": (_column("logit_lens.echo", 0.123), True, "do not have the digest it gives"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_refused_in_one_sentence_and_leaves_nothing(good, tmp_path, what):
    change, sealed, told = DAMAGE[what]
    data = made_of(change(contents(good)), sealed=sealed)
    with pytest.raises(ImportRefused) as refused:
        bundle.unpack(io.BytesIO(data), tmp_path / "there")
    assert told in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_archive_that_is_no_plain_one_is_refused(good, tmp_path):
    files = contents(good)
    later = made_of(files, lambda manifest: manifest.update(version=99))
    for bad, told in (
        (later, "reads version 4"),
        (made_of(files, lambda m: m.update(name="../x")), "name"),
        (made_of(files, lambda m: m.update(name="other")), "names another study"),
        (good[:-30], "not a study"),
        (b"", "not a study"),
        (b"no zip at all", "not a study"),
    ):
        with pytest.raises(ImportRefused, match=told) as refused:
            bundle.unpack(io.BytesIO(bad), tmp_path / "there")
        assert isinstance(refused.value, OtherVersion) == (bad is later) and not list(tmp_path.iterdir())


def test_a_report_holds_no_html(computed, tmp_path):
    """Its Markdown may be shown by anything, and a study's note and labels are anybody's."""
    folder = open_folder(computed)
    folder.plan["note"] = "<script>alert(1)</script>"
    found = report.markdown(folder, "")
    assert "&lt;script>" in found and "<" not in found


def test_a_full_disk_is_not_blamed_on_the_file(good, tmp_path, monkeypatch):
    monkeypatch.setattr(report.disk, "write", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(StudyError, match="the disk is full.* --out ") as error:
        bundle.unpack(io.BytesIO(good), tmp_path / "there")
    assert not isinstance(error.value, ImportRefused) and not list(tmp_path.iterdir())


def test_prompt_by_prompt_the_numbers_come_to_the_aggregates(computed):
    folder = open_folder(computed)
    found = tables.by_prompt(folder).to_pandas().query("model == 'ed-demo-8'")
    assert set(found.prompt) == {f"{level}-{i}" for level in (2, 3) for i in range(3)}
    lens = folder.sums("ed-demo-8", "sums").probe("logit_lens")
    kl = found[(found.probe == "logit_lens") & (found.measure == "kl") & (found.layer == 3)].value.to_numpy()
    np.testing.assert_allclose(kl, lens["kl.sum"][:, 3] / lens["n_tokens"], rtol=1e-6)
    first = "set == 'sums' and model == 'ed-demo-8' and measure == 'kl' and layer == 3"
    whole = tables.summary(folder).to_pandas().query(first)
    assert (kl * lens["n_tokens"]).sum() / lens["n_tokens"].sum() == pytest.approx(whole.value.item(), rel=1e-6)


@pytest.mark.parametrize("name, told", [("a.txt", "ends in none"), ("a.b.svg", "There is no figure")])
def test_a_file_that_nobody_knows_is_refused_and_none_is_written(computed, tmp_path, capsys, name, told):
    refused(capsys, ["study", computed, "--export", tmp_path / "summary.csv", "--export", tmp_path / name], told)
    assert not list(tmp_path.iterdir())
