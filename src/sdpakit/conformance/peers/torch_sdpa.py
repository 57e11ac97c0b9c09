"""`torch.nn.functional.scaled_dot_product_attention` on the CPU, and each of its kernels alone."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sdpakit.conformance.model import Profile
from sdpakit.conformance.peers.asked import CAUSAL, DENSE, Asked, Call, asked
from sdpakit.conformance.peers.peer import HALF_WEIGHTS, Peer, library
from sdpakit.conformance.peers.torch_arrays import to_array, to_tensor
from sdpakit.conformance.target import refusal

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


def _is_plain(spec: AttentionSpec, wanted: Asked) -> bool:
    """Return whether is_causal and attn_mask say all: nothing is made here that would join."""
    merged = wanted.dense and spec.bias is not None
    return wanted.parts <= {CAUSAL, DENSE} and spec.logits is None and not merged


class Torch(Peer):
    """The function as it dispatches by itself.

    Its kernel is the fused one where that takes the call, the unfused one elsewhere.
    """

    name = "torch"
    packages = ("torch",)
    note = "torch.nn.functional.scaled_dot_product_attention, default dispatch on the CPU"
    # aten/src/ATen/native/cpu/FlashAttentionKernel.cpp converts the weights of a tile to the dtype
    # of q for the product with v, and does the like in the backward.
    profile = HALF_WEIGHTS
    _kernel = ""

    def __init__(self) -> None:
        self.torch = library("torch", "torch")
        super().__init__()

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return what is_causal and attn_mask say."""
        if _is_plain(spec, wanted) and wanted.causal_is("top_left"):
            return {CAUSAL, DENSE}
        alone = wanted.parts == {CAUSAL} and spec.bias is None and spec.logits is None
        if alone and wanted.causal_is("bottom_right"):
            return {CAUSAL}  # torch.nn.attention.bias.causal_lower_right
        return {DENSE}

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse a bias of a dtype that torch documents not to take."""
        if spec.bias not in (None, "float32", spec.dtype):
            return [f"attn_mask is float32 or of the dtype of q, not {spec.bias}"]
        return []

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out; see `Peer.attention`."""
        q, k, v, mask, bias = self._tensors(call)
        out = self._run(call, (q, k, v), self._combined(call, q, mask, bias))
        return {"out": call.heads_first(to_array(self.torch, out))}

    def gradients(self, call: Call, dout: Any) -> dict[str, Any]:
        """Return what autograd gives; see `Peer.gradients`."""
        q, k, v, mask, bias = self._tensors(call)
        leaves = [x.detach().requires_grad_(True) for x in (q, k, v)]
        names = ["dq", "dk", "dv"]
        if bias is not None:
            bias = bias.detach().requires_grad_(True)
            leaves.append(bias)
            names.append("dbias")
        out = self._run(call, tuple(leaves[:3]), self._combined(call, q, mask, bias))
        upstream = to_tensor(self.torch, self.name, call.heads_first(dout))
        found = self.torch.autograd.grad(out, leaves, upstream)
        arrays = [to_array(self.torch, x) for x in found]
        return {
            name: array if name == "dbias" else call.heads_first(array)
            for name, array in zip(names, arrays, strict=True)
        }

    def _tensors(self, call: Call) -> tuple[Any, ...]:
        with warnings.catch_warnings():
            # from_numpy warns of read-only memory; nothing is written to it.
            warnings.simplefilter("ignore", UserWarning)
            q, k, v = (call.heads_first(x) for x in (call.q, call.k, call.v))
            mask, bias = call.mask, call.bias
            return tuple(
                None if x is None else to_tensor(self.torch, self.name, x)
                for x in (q, k, v, mask, bias)
            )

    def _combined(self, call: Call, q: Any, mask: Any, bias: Any) -> Any:
        if mask is not None and bias is not None:
            return self.torch.where(mask, bias, float("-inf"))
        return mask if bias is None else bias

    def _run(self, call: Call, qkv: tuple[Any, ...], combined: Any) -> Any:
        causal = self._is_causal(call)
        if CAUSAL in asked(call.spec).parts and CAUSAL not in call.made and not causal:
            combined = self._lower_right(qkv)
        groups = {"enable_gqa": True} if call.spec.q_heads != call.spec.kv_heads else {}
        with self._only():
            return self.torch.nn.functional.scaled_dot_product_attention(
                *qkv, attn_mask=combined, is_causal=causal, scale=call.spec.scale, **groups
            )

    def _is_causal(self, call: Call) -> bool:
        wanted = asked(call.spec)
        return CAUSAL not in call.made and wanted.causal_is("top_left")

    def _lower_right(self, qkv: tuple[Any, ...]) -> Any:
        bias = library("torch.nn.attention.bias", "torch")
        with warnings.catch_warnings():
            # It warns of NaN where there are more rows than keys; whether that is so is judged.
            warnings.simplefilter("ignore", UserWarning)
            return bias.causal_lower_right(qkv[0].shape[2], qkv[1].shape[2])

    @contextlib.contextmanager
    def _only(self) -> Iterator[None]:
        """Let no other kernel than the wanted one run."""
        if not self._kernel:
            yield
            return
        module = library("torch.nn.attention", "torch")
        with module.sdpa_kernel([getattr(module.SDPBackend, self._kernel)]):
            yield


class TorchMath(Torch):
    """The unfused kernel alone."""

    name = "torch-math"
    note = "the same function, held to SDPBackend.MATH"
    profile = Profile()
    _kernel = "MATH"


class TorchFlash(Torch):
    """The fused kernel of the CPU alone; unlike the function it gives the LSE.

    It runs where torch's own choice of a kernel falls on it: called past that choice it divides by
    zero for empty dimensions.
    """

    name = "torch-flash"
    outputs = ("out", "lse")
    note = (
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu where torch chooses it; a "
        "boolean array becomes 0 and -inf, as the dispatcher does it"
    )

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return what is_causal and attn_mask say; there is no lower-right object."""
        if _is_plain(spec, wanted) and wanted.causal_is("top_left"):
            return {CAUSAL, DENSE}
        return {DENSE}

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse widths that the kernel does not take."""
        wide = [] if spec.head_dim == spec.v_head_dim else ["q, k and v have one width"]
        return [*super().limits(spec), *wide]

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out and lse; see `Peer.attention`."""
        q, k, v, mask, bias = self._tensors(call)
        out, lse = self._fused(call, (q, k, v), self._combined(call, q, mask, bias))
        return {
            "out": call.heads_first(to_array(self.torch, out)),
            "lse": to_array(self.torch, lse),
        }

    def _run(self, call: Call, qkv: tuple[Any, ...], combined: Any) -> Any:
        return self._fused(call, qkv, combined)[0]

    def _fused(self, call: Call, qkv: tuple[Any, ...], combined: Any) -> Any:
        torch, causal, scale = self.torch, self._is_causal(call), call.spec.scale
        flash = int(library("torch.nn.attention", "torch").SDPBackend.FLASH_ATTENTION.value)
        # Torch has no public name for its choice of a kernel, nor for the kernel that gives lse.
        chosen = torch._fused_sdp_choice(  # noqa: SLF001 - see above
            *qkv, combined, 0.0, causal, scale=scale, enable_gqa=qkv[0].shape[1] != qkv[1].shape[1]
        )
        if chosen != flash or not all(x.numel() for x in qkv):
            raise refusal(self.name, "torch does not choose this kernel for such operands")
        if combined is not None and combined.dtype == torch.bool:
            shown = torch.zeros(combined.shape, dtype=qkv[0].dtype)
            combined = shown.masked_fill(~combined, float("-inf"))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - see above
            *qkv, 0.0, causal, attn_mask=combined, scale=scale
        )
