"""Pure functions from measures to plotly figures: no torch, no streamlit.

Trace 0 of every map is named "z" and holds the measure's array as it is; what makes it readable is around it.
"""

from .canvas import shown, visible
from .colours import ATTENTION, BOTH, CRITERIA, MLP
from .course import course, small_map
from .curves import (
    first_token_norm,
    layer_curves,
    limit_bars,
    miss_curves,
    miss_map,
    output_bars,
    slope_curves,
    spared_layers,
    spread_curve,
    token_profile,
)
from .describe import describe, describe_curves, is_map
from .lens import first_position, lens_height, lens_map, writing_map
from .loops import loop_curves
from .maps import contribution_norms, cosine_map, token_map
from .pair import (
    best_errors,
    best_matches,
    difference_map,
    map_between,
    map_height,
    pair_curves,
    pair_ruler,
    replacement_bars,
)
from .panel import View
from .rooms import Row, forest, model_course
from .skips import DONE, added_curves, boundary_map, effect_on_layers, skip_map, surgery_map
from .steps import depth_over_steps, layers_over_steps
from .studies import VARIANTS, study_curves, study_depths, study_levels, study_sizes

__all__ = [
    "ATTENTION",
    "BOTH",
    "CRITERIA",
    "DONE",
    "MLP",
    "VARIANTS",
    "Row",
    "View",
    "added_curves",
    "best_errors",
    "best_matches",
    "boundary_map",
    "contribution_norms",
    "cosine_map",
    "course",
    "depth_over_steps",
    "describe",
    "describe_curves",
    "difference_map",
    "effect_on_layers",
    "first_position",
    "first_token_norm",
    "forest",
    "is_map",
    "layer_curves",
    "layers_over_steps",
    "lens_height",
    "lens_map",
    "limit_bars",
    "loop_curves",
    "map_between",
    "map_height",
    "miss_curves",
    "miss_map",
    "model_course",
    "output_bars",
    "pair_curves",
    "pair_ruler",
    "replacement_bars",
    "shown",
    "skip_map",
    "slope_curves",
    "small_map",
    "spared_layers",
    "spread_curve",
    "study_curves",
    "study_depths",
    "study_levels",
    "study_sizes",
    "surgery_map",
    "token_map",
    "token_profile",
    "visible",
    "writing_map",
]
