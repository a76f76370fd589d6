"""The numbers of an engine: how large it is, and which of its optional parts it has."""

from __future__ import annotations

import attrs
import torch
from attrs.validators import ge, instance_of

from tsgraph.reference.model import DecoderConfig
from tsgraph.reference.text import EOS


@attrs.frozen(kw_only=True)
class EngineConfig:
    """Most `rows` at a time, `pages` of `page_size` tokens, `context` tokens a request.

    One page is the dummy page. The default `dtype` is float32, in which paths compare best; others work alike. With
    more than one of `tokens_per_request` a draft model proposes all but the first of them; `variants` adds sampler
    variants, and penalties with them; `constrained` lets requests have grammars; recurrent layers are the decoder's
    own matter.
    """

    decoder: DecoderConfig = attrs.field(factory=DecoderConfig)
    rows: int = attrs.field(default=16, validator=[instance_of(int), ge(1)])
    pages: int = attrs.field(default=257, validator=[instance_of(int), ge(2)])
    page_size: int = attrs.field(default=16, validator=[instance_of(int), ge(1)])
    context: int = attrs.field(default=256, validator=[instance_of(int), ge(1)])
    tokens_per_request: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    variants: bool = False
    constrained: bool = False
    seed: int = 0
    eos: int | None = EOS
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @tokens_per_request.validator
    def _has_layers_to_draft_with(self, _: object, value: int) -> None:
        if value > 1 and not self.decoder.attending:
            raise ValueError("tokens_per_request: a draft model needs layers that attend, and the decoder has none")

    @property
    def drafts(self) -> int:
        """Tokens that the draft model proposes for each row and step."""
        return self.tokens_per_request - 1

    @property
    def lookahead(self) -> int:
        """Tokens beyond its budget that a request needs room for: drafts being verified, and drafts being made."""
        return max(0, 2 * self.drafts - 1)

    @property
    def pages_per_request(self) -> int:
        """The width of a page table."""
        return -(-(self.context + self.lookahead) // self.page_size)

    @property
    def spec(self) -> str:
        """The shipped spec that is its contract."""
        plain = not self.drafts and not self.variants and not self.decoder.recurrent
        return "reference" if plain else "reference_full"
