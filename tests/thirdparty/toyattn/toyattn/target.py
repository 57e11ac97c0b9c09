"""The adapter: what the package promises, and what it refuses."""

import functools

import toyattn
from sdpakit.conformance.target import BaseTarget, refusal


class Toy(BaseTarget):
    name = "toy"
    outputs = ("out",)
    versions = {"toyattn": "0.3"}  # noqa: RUF012 - nobody writes to it
    note = "calls toyattn.attention"

    def declares(self, spec):
        return not self.missing(spec)

    def prepare(self, spec):
        if missing := self.missing(spec):
            raise refusal(self.name, *(f"it has no {name}" for name in missing))
        return functools.partial(toyattn.attention, scale=spec.scale)

    def missing(self, spec):
        absent = {"mask": None, "logits": None, "softcap": None, "bias": None, "sinks": False}
        absent |= {"q_lens": False, "kv_lens": False}
        found = [name for name, default in absent.items() if getattr(spec, name) is not default]
        others = (spec.layout, spec.empty_row, spec.out_dtype) != ("bhsd", "zero", spec.dtype)
        return found + ["other layouts or dtypes"] * others
