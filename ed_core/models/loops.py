"""Looped decoders, for which transformers has no class: our own small ones, and Ouro's layout, so that its checkpoints
open without their repository's code.

Importing this file makes both known to transformers' `Auto` classes. Both are made of Llama's parts. Pass r of block n
keeps its keys and values in slot `r * N + n` of the cache.

Shapes: hidden states and embeddings [batch, pos, d_model]."""

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from .quantized import no_kernels

with no_kernels():  # transformers looks for compiled code when Llama's parts are imported
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.cache_utils import Cache, DynamicCache
    from transformers.masking_utils import create_causal_mask
    from transformers.modeling_outputs import BaseModelOutputWithPast
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaAttention,
        LlamaDecoderLayer,
        LlamaForCausalLM,
        LlamaMLP,
        LlamaPreTrainedModel,
        LlamaRMSNorm,
        LlamaRotaryEmbedding,
    )


@strict
class LoopedConfig(LlamaConfig):
    """Config of this project's looped decoder. `n_loops`: passes through the blocks. Between two of them, in this order
    and where they are on: a norm (`loop_norm`), and the embedding added once more (`loop_input`)."""

    model_type = "ed_looped"

    n_loops: int = 4
    loop_norm: bool = False
    loop_input: bool = False


@strict
class OuroConfig(LlamaConfig):
    """Config of Ouro (arXiv 2510.25741). `total_ut_steps`: passes through the blocks."""

    model_type = "ouro"

    total_ut_steps: int = 4
    early_exit_step: int | None = None
    early_exit_threshold: float | int | None = 1.0
    sliding_window: int | None = None
    use_sliding_window: bool = False


class PassCache:
    """The view that one pass has of a key-value cache: block n finds its keys and values in slot `first + n`."""

    def __init__(self, cache: Cache, first: int):
        self.cache, self.first = cache, first

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add a block's keys and values of new tokens to the cache and return those of all tokens."""
        updated: tuple[Tensor, Tensor] = self.cache.update(keys, values, self.first + layer_idx, *args, **kwargs)
        return updated

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def _grows(cache: Cache | None) -> bool:
    """Return whether the cache adds slots as needed; the one that `generate` makes has one per block."""
    return cache is not None and getattr(cache, "layer_class_to_replicate", None) is not None


class _Loop(LlamaPreTrainedModel):
    """A looped decoder without head: embedding, blocks run several times with `between` in between, final norm."""

    block: type[nn.Module] = LlamaDecoderLayer
    passes: str  # the config's field with their number

    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList([self.block(config, place) for place in range(config.num_hidden_layers)])
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.more(config)
        self.post_init()  # type: ignore[no-untyped-call]  # the library's

    def more(self, config: Any) -> None:
        """Add the modules that a family has besides embedding, blocks and final norm."""

    def between(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Return the stream that enters the next pass, from the one that a pass left (`hidden`) and the embedding."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Return the normed stream after the last pass, and the cache; arguments as in Llama's models."""
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache is None:
            use_cache = self.config.use_cache
        if use_cache and not _grows(past_key_values):
            past_key_values = DynamicCache()
        n_cached = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = (self.rotary_emb.inv_freq.new_ones(embedded.shape[1]).cumsum(0).long() - 1 + n_cached)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        hidden, rotary = embedded, self.rotary_emb(embedded, position_ids=position_ids)
        for number in range(getattr(self.config, self.passes)):
            if number:
                hidden = self.between(hidden, embedded)
            own = None if past_key_values is None else PassCache(past_key_values, number * len(self.layers))
            for block in self.layers:
                hidden = block(
                    hidden,
                    attention_mask=mask,
                    position_ids=position_ids,
                    past_key_values=own,
                    use_cache=use_cache,
                    position_embeddings=rotary,
                    **kwargs,
                )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)


class LoopedModel(_Loop):
    """Llama's blocks, `config.n_loops` times."""

    config: LoopedConfig
    passes = "n_loops"

    def more(self, config: Any) -> None:
        if config.loop_norm:
            self.loop_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def between(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Return the stream with the norm and the embedding added, where the config asks for each."""
        if self.config.loop_norm:
            hidden = self.loop_norm(hidden)
        return hidden + embedded if self.config.loop_input else hidden


class OuroBlock(LlamaDecoderLayer):
    """A norm before and after each branch, named as in Ouro's checkpoints."""

    def __init__(self, config: LlamaConfig, layer_idx: int):
        """Return the stream after attention and MLP have added to it."""
        nn.Module.__init__(self)
        self.hidden_size = config.hidden_size
        self.self_attn = LlamaAttention(config=config, layer_idx=layer_idx)
        self.mlp = LlamaMLP(config)
        self.input_layernorm, self.input_layernorm_2, self.post_attention_layernorm, self.post_attention_layernorm_2 = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(4)
        )

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
        added, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + self.input_layernorm_2(added)
        added = self.mlp(self.post_attention_layernorm(hidden_states))
        left: Tensor = hidden_states + self.post_attention_layernorm_2(added)
        return left


class OuroModel(_Loop):
    """Ouro: the final norm follows every pass; a gate reads its output and gives the chance of leaving there."""

    config: OuroConfig
    block = OuroBlock
    passes = "total_ut_steps"

    def more(self, config: Any) -> None:
        self.early_exit_gate = nn.Linear(config.hidden_size, 1)

    def between(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Return the stream after the final norm."""
        normed: Tensor = self.norm(hidden)
        return normed


class _LoopForCausalLM(LlamaForCausalLM):
    """A looped decoder of the class `inside`, with a head."""

    inside: type[_Loop]

    def __init__(self, config: LlamaConfig):
        LlamaPreTrainedModel.__init__(self, config)
        self.model = self.inside(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]  # the library's


class LoopedForCausalLM(_LoopForCausalLM):
    """Our own looped decoder with its head."""

    config: LoopedConfig
    inside = LoopedModel


class OuroForCausalLM(_LoopForCausalLM):
    """Ouro with its head, which reads the last pass."""

    config: OuroConfig
    inside = OuroModel


CLASSES: dict[type[LlamaConfig], type[_LoopForCausalLM]] = {
    LoopedConfig: LoopedForCausalLM,
    OuroConfig: OuroForCausalLM,
}
for _config, _model in CLASSES.items():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)  # a later library may have a class of that name
    AutoModelForCausalLM.register(_config, _model, exist_ok=True)
