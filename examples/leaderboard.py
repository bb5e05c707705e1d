"""Do deeper models score better? A benchmark score regressed on layers [Csordás et al. 2025], by statsmodels where it
is installed, else by numpy.

    python examples/leaderboard.py [--score math_lvl5] [--also own.csv] [--study DIR] [--out leaderboard]

`leaderboard.csv` holds the dense pretrained decoders of the Open LLM Leaderboard (v2), one per row. `layers_source`
says where the layer count was read, `check` how strong that source is: `direct` (the publisher's or a library's own
configuration), `copy` (a copy of it), `kept` (read earlier, and checked), `sibling` (a model of the same family and
size), `derived` (computed from a recipe), `unverified` (no source). `family` is a publisher's series, `lineage` joins
families with a common ancestor. Scores are percentages above chance, as the leaderboard gives them, copied from two
mirrors of it (every_eval_ever, modelrank_ai).

The score is fitted by ordinary least squares on layers; on layers and log parameters; and on both with log width; with
`--study`, the folder of a study, on the average depth that it measured of each model (KL, a share of the layers). The
models of a family are not independent, so standard errors are clustered by family (CR1), with Student's t of one
degree of freedom fewer than families. Rows without a source for their layer count are left out, and so are rows
scored in float16. The sample is not that of Csordás et al. 2025 (arXiv 2505.13898), who fit 132 models and publish
neither which ones nor their coefficients. The data are observed: whoever makes a model larger makes it deeper, wider,
newer and better trained at once, so no slope is the effect of one more layer."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

try:
    import statsmodels.formula.api as smf
except ImportError:
    smf = None
from scipy.stats import t as student

DATA = Path(__file__).with_suffix(".csv")
SCORES = ("average", "ifeval", "bbh", "math_lvl5", "gpqa", "musr", "mmlu_pro")
FITS = {
    "layers": "layers",
    "layers, parameters": "layers + log_params",
    "layers, parameters, width": "layers + log_params + log_width",
}


def read(also=()):
    """The leaderboard's models and those of the files `also`: model, layers, params_b (billions) and a score; where
    known d_model, family, check and precision. Without a family, a model is a family of its own."""
    models = pd.concat([pd.read_csv(file) for file in (DATA, *also)], ignore_index=True)
    given = models.fillna({"precision": "bfloat16", "check": "given", "family": models.model})
    return given.assign(log_params=np.log(given.params_b), log_width=np.log(given.d_model))


def usable(models):
    """Which models enter the fits, `[model]`: those with a source for their layers that were scored in bfloat16."""
    return (models.check != "unverified") & (models.precision == "bfloat16")


def depths(folder):
    """Of a study's models their average depth as a share of the layers, the mean over its sets, by name."""
    verdict = pd.read_parquet(Path(folder) / "verdict.parquet")
    own = verdict[(verdict.criterion == "kl") & (verdict.variant == "mean") & ~verdict.set.str.contains("/")]
    return own.groupby("model").ratio.mean()


def fit(models, score, terms):
    """The coefficients of the fitted score, a row per term, with standard errors clustered by family."""
    used = models[usable(models)].dropna(subset=[score, "layers", *terms.split(" + ")])
    groups = used.family.astype("category").cat.codes.to_numpy()
    y, x = used[score].to_numpy(float), used[terms.split(" + ")].to_numpy(float)
    x = np.column_stack([np.ones(len(x)), x])
    if smf is not None:
        found = smf.ols(f"{score} ~ {terms}", used).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
        beta, errors = found.params.to_numpy(), found.bse.to_numpy()
    else:
        beta, errors = clustered(x, y, groups)
    families, residuals = len(set(groups)), y - x @ beta
    half = student.ppf(0.975, families - 1) * errors
    return pd.DataFrame(
        {
            "coefficient": ["Intercept", *terms.split(" + ")],
            "value": beta,
            "error": errors,
            "low 95 %": beta - half,
            "high 95 %": beta + half,
            "p": 2 * student.sf(np.abs(beta / errors), families - 1),
            "R²": 1 - (residuals @ residuals) / ((y - y.mean()) @ (y - y.mean())),
            "models": len(y),
            "mean": x.mean(0),
        }
    )


def clustered(x, y, groups):
    """Ordinary least squares and its standard errors clustered by `groups` (CR1)."""
    inverse = np.linalg.inv(x.T @ x)
    beta = inverse @ x.T @ y
    scores = [x[groups == one].T @ (y - x @ beta)[groups == one] for one in set(groups)]
    (n, k), g = x.shape, len(scores)
    meat = sum(np.outer(one, one) for one in scores) * g / (g - 1) * (n - 1) / (n - k)
    return beta, np.sqrt(np.diag(inverse @ meat @ inverse))


def table(fits):
    """A row per fit and coefficient."""
    rows = [found.assign(fit=name)[found.coefficient != "Intercept"] for name, found in fits.items()]
    return pd.concat(rows, ignore_index=True)[["fit", *rows[0].columns.drop(["fit", "mean"])]]


def figure(models, score, fits):
    """A mark per model, wider for larger ones; hollow: left out. The lines hold the other terms at their means."""
    drawn = go.Figure()
    for name, some in (("in the fits", usable(models)), ("left out", ~usable(models))):
        of = models[some]
        drawn.add_scatter(
            x=of.layers,
            y=of[score],
            mode="markers",
            name=name,
            text=of.model + "<br>" + of.family + ", layers from " + of.layers_source.fillna("the file given"),
            marker={
                "size": (5 + 2.4 * (of.log_params - np.log(0.3))).clip(5, 18),
                "symbol": "circle" if name == "in the fits" else "circle-open",
            },
        )
    ends = np.array([models.layers.min(), models.layers.max()])
    for name, found in fits.items():
        of = found.set_index("coefficient")
        if "layers" in of.index:
            slope = of.value.layers
            drawn.add_scatter(
                x=ends, y=of.value @ of["mean"] + slope * (ends - of["mean"].layers), mode="lines", name=name
            )
    return drawn.update_layout(template="simple_white", xaxis_title="layers", yaxis_title=f"{score}, %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--score", default="average", choices=SCORES)
    parser.add_argument("--also", action="append", default=[], metavar="FILE.csv", help="models of your own")
    parser.add_argument("--study", metavar="DIR", help="a study's folder; its average depths enter two more fits")
    parser.add_argument("--out", default="leaderboard", metavar="NAME", help="of NAME.csv and NAME.html")
    args = parser.parse_args()
    models, terms = read(args.also), dict(FITS)
    if args.study:
        models["depth"] = models.model.str.rsplit("/").str[-1].map(depths(args.study))
        terms |= {"depth": "depth", "depth, layers": "depth + layers"}
    fits = {name: fit(models, args.score, of) for name, of in terms.items()}
    found = table(fits)
    print(found.to_string(index=False, float_format="{:.3f}".format))
    print(f"{len(models)} models, {(~usable(models)).sum()} left out: no source for their layers, or float16 scores.")
    found.to_csv(f"{args.out}.csv", index=False)
    figure(models, args.score, fits).write_html(f"{args.out}.html", include_plotlyjs="cdn")
    print(f"{args.out}.csv, {args.out}.html")


if __name__ == "__main__":
    main()
