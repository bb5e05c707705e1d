"""Do deeper models score better? A benchmark score regressed on layers [Csordás et al. 2025], with statsmodels.

    python examples/leaderboard.py [--score math_lvl5] [--also own.csv] [--out leaderboard.html]

`leaderboard.csv` holds the dense pretrained decoders of the Open LLM Leaderboard (v2), one per row. `layers_source`
says where the layer count was read, `check` how strong that source is: `direct` (the publisher's or a library's own
configuration), `copy` (a copy of it), `kept` (read earlier, and checked), `sibling` (a model of the same family and
size), `derived` (computed from a recipe), `unverified` (no source). `family` is a publisher's series, `lineage` joins
families with a common ancestor. Scores are percentages above chance, as the leaderboard gives them, copied from two
mirrors of it (every_eval_ever, modelrank_ai).

The score is fitted by ordinary least squares on layers; on layers and log parameters; and on both with log width. The
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
import statsmodels.formula.api as smf

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


def fit(models, score, terms):
    """The fitted score, with standard errors clustered by family."""
    used = models[usable(models)].dropna(subset=[score, "layers", *terms.split(" + ")])
    groups = used.family.astype("category").cat.codes
    return smf.ols(f"{score} ~ {terms}", used).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)


def table(fits):
    """A row per fit and coefficient."""
    rows = []
    for name, found in fits.items():
        ends = found.conf_int()
        for term in found.params.index.drop("Intercept"):
            rows.append(
                {
                    "fit": name,
                    "coefficient": term,
                    "value": found.params[term],
                    "error": found.bse[term],
                    "low 95 %": ends.loc[term, 0],
                    "high 95 %": ends.loc[term, 1],
                    "p": found.pvalues[term],
                    "R²": found.rsquared,
                    "models": int(found.nobs),
                }
            )
    return pd.DataFrame(rows)


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
        means = pd.DataFrame(found.model.exog, columns=found.model.exog_names).mean()
        height = found.params @ means - found.params.layers * means.layers
        drawn.add_scatter(x=ends, y=height + found.params.layers * ends, mode="lines", name=name)
    return drawn.update_layout(template="simple_white", xaxis_title="layers", yaxis_title=f"{score}, %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--score", default="average", choices=SCORES)
    parser.add_argument("--also", action="append", default=[], metavar="FILE.csv", help="models of your own")
    parser.add_argument("--out", default="leaderboard.html", metavar="FILE.html", help="default: %(default)s")
    args = parser.parse_args()
    models = read(args.also)
    fits = {name: fit(models, args.score, terms) for name, terms in FITS.items()}
    print(table(fits).to_string(index=False, float_format="{:.3f}".format))
    print(f"{len(models)} models, {(~usable(models)).sum()} left out: no source for their layers, or float16 scores.")
    figure(models, args.score, fits).write_html(args.out, include_plotlyjs="cdn")
    print(args.out)


if __name__ == "__main__":
    main()
