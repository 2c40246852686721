# SPDX-License-Identifier: AGPL-3.0-or-later
"""Our checkpoints in Hugging Face's world: after `import rusty_r2.lm.hf` the Auto classes know them.

    import rusty_r2.lm.hf
    model = AutoModelForCausalLM.from_pretrained("runs/first/step_001000")
    model.generate(**AutoTokenizer.from_pretrained("runs/first/step_001000")(" hello", return_tensors="pt"))

The class is the same layers under the same names as TinyRWKVLM, so both read one model.safetensors, and
peft finds plain Linear modules. `generate` carries the State as its cache: a new token costs one token.
Left padding is exact: the first token that is not padding starts from an empty state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from rusty_r2.errors import ConfigError
from rusty_r2.lm.checkpoint import MODEL_TYPE, describe
from rusty_r2.lm.rwkv import Backbone, ModelConfig, TinyRWKVLM


class RustyRwkvConfig(PretrainedConfig):  # type: ignore[misc]
    """ModelConfig's fields and Hugging Face's own."""

    model_type = MODEL_TYPE
    attribute_map = {"hidden_size": "d_hidden", "num_hidden_layers": "n_layers"}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        known = {field.name: options.pop(field.name, field.default) for field in fields(ModelConfig)}
        for name, default in (("bos_token_id", 1), ("eos_token_id", 2), ("pad_token_id", 0)):
            options.setdefault(name, default)
        options.setdefault("tie_word_embeddings", False)
        super().__init__(**options)
        for name, value in known.items():
            setattr(self, name, value)

    def sizes(self) -> ModelConfig:
        """As TinyRWKVLM takes them."""
        return ModelConfig(**{field.name: getattr(self, field.name) for field in fields(ModelConfig)})


@dataclass
class RustyRwkvOutput(ModelOutput):  # type: ignore[misc]
    """What `forward` gives; `state` is what the next call can go on from."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class _Body:
    """The model without its head, as TRL calls it: hidden states alone, no logits of 24,000 words each."""

    _tp_plan = _pp_plan = None

    def __init__(self, model: Backbone) -> None:
        self._model = model

    def __call__(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        hidden, _state = self._model.trunk(input_ids, reset=_starts(attention_mask))
        return BaseModelOutput(last_hidden_state=hidden)


class RustyRwkvForCausalLM(Backbone, PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """TinyRWKVLM with Hugging Face's calling convention."""

    config_class = RustyRwkvConfig
    post_init: Any
    loss_function: Any
    supports_gradient_checkpointing = True
    _is_stateful = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: RustyRwkvConfig) -> None:
        super().__init__(config)
        self.build(config.sizes())
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """The layers initialise themselves."""

    @property
    def base_model(self) -> Any:
        return _Body(self)

    def get_input_embeddings(self) -> Any:
        return self.token_embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.token_embedding = value

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def set_output_embeddings(self, value: Any) -> None:
        self.lm_head = value

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        self.config.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.config.gradient_checkpointing = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **options: Any,
    ) -> Any:
        """Logits, and with `labels` (shifted here, -100 ignored) the mean loss."""
        hidden, state = self.trunk(input_ids, state, reset=_starts(attention_mask))
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.head(hidden[:, kept])
        loss = None
        if labels is not None:
            words = self.config.vocab_size
            wanted = ("num_items_in_batch", "shift_labels")
            given = {name: options[name] for name in wanted if options.get(name) is not None}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=words, **given)
        seen = (hidden,) if output_hidden_states else None
        out = RustyRwkvOutput(
            loss=loss, logits=logits, state=state if use_cache else None, hidden_states=seen
        )
        return out.to_tuple() if return_dict is False else out

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        state: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """All of the prompt first, then only what is new."""
        if state is not None:
            input_ids, attention_mask = input_ids[:, -1:], None
        keep: dict[str, Any] = {
            name: options[name] for name in ("use_cache", "logits_to_keep") if name in options
        }
        return {"input_ids": input_ids, "state": state, "attention_mask": attention_mask, **keep}

    def _prepare_cache_for_generation(self, generation_config: Any, *_: Any, **__: Any) -> None:
        if (generation_config.num_beams or 1) > 1:
            raise ConfigError("beam search would need states copied between beams; set num_beams=1")


def _starts(mask: Tensor | None) -> Tensor | None:
    """True where padding ends and text begins."""
    if mask is None or bool(mask.all()):
        return None
    text = mask.bool()
    starts = text.clone()
    starts[:, 1:] &= ~text[:, :-1]
    return starts


def wrap(model: TinyRWKVLM) -> RustyRwkvForCausalLM:
    """A Hugging Face model with the weights of `model`, shared, not copied."""
    made = RustyRwkvForCausalLM(RustyRwkvConfig(**describe(model.config)))
    made.load_state_dict(model.state_dict(), assign=True)
    return made.train(model.training)


AutoConfig.register(MODEL_TYPE, RustyRwkvConfig, exist_ok=True)
AutoModelForCausalLM.register(RustyRwkvConfig, RustyRwkvForCausalLM, exist_ok=True)
AutoTokenizer.register(RustyRwkvConfig, fast_tokenizer_class=PreTrainedTokenizerFast, exist_ok=True)
