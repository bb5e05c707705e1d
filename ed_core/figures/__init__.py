"""Pure functions from measures to plotly figures: no torch, no streamlit.

Trace 0 of every map is named "z" and holds the measure's array as it is; what makes it readable is around it.
"""

from .canvas import shown, visible
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
from .pair import best_errors, best_matches, difference_map, map_between, pair_curves, replacement_bars
from .panel import View
from .rooms import Row, forest, model_course
from .ruler import pair_ruler
from .skips import DONE, added_curves, boundary_map, effect_on_layers, skip_map, surgery_map
from .steps import depth_over_steps, layers_over_steps
from .studies import VARIANTS, study_curves, study_depths, study_levels, study_sizes
