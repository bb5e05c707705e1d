"""What the trainings of the bundled models share: optimizers, schedule, a step, and a state on disk from which a run
that was stopped continues."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

WARMUP, DECAY = 0.01, 0.25
CLIP = 1.0


def schedule(done: float) -> float:
    """Factor on the learning rate after this share of the budget: up, constant, down to zero."""
    return min(1.0, done / WARMUP + 0.01, max(0.0, 1 - done) / DECAY)


class Trainer:
    """A model and its optimizers: Muon for the blocks' matrices, AdamW for the embedding and the norms."""

    def __init__(self, model: PreTrainedModel, rate: float):
        self.model, self.rate = model, rate
        weights = dict(model.named_parameters())
        matrices = [w for w in weights.values() if w.ndim == 2 and w is not model.lm_head.weight]
        rest = [w for w in weights.values() if w.ndim == 1] + [model.lm_head.weight]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Predictions of every token but the first, `(batch, pos - 1, vocabulary)`."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()

    def step(self, loss: torch.Tensor, done: float) -> None:
        """One step of the optimizers, after this share of the budget."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate * schedule(done)
            optimizer.step()
        self.model.zero_grad()

    def save(self, folder: Path, counts: dict) -> None:
        """Write weights, the optimizers' state and the counts of the run."""
        folder.mkdir(parents=True, exist_ok=True)
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save({"model": self.model.state_dict(), "optimizers": optimizers, "counts": counts}, folder / "state.pt")

    def resume(self, folder: Path) -> dict:
        """Load what `save` wrote; its counts, or {} where there is nothing."""
        if not (folder / "state.pt").exists():
            return {}
        state = torch.load(folder / "state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        return state["counts"]
