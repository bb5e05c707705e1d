"""Depth while a model trains.

    from ed_core.training import DepthCallback

    trainer = Trainer(model, …, callbacks=[DepthCallback(prompts, every=500)])

`callback` is what a `transformers.Trainer` calls, or a loop of one's own; it keeps what was measured as a study.
Nothing here imports torch or transformers before a model is measured."""

from .callback import DepthCallback as DepthCallback
from .callback import Row as Row
