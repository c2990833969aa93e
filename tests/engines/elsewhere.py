"""A second device for machines that have none: CPU tensors that say they lie elsewhere, and operations that refuse to mix them with others.

It finds what would fail on an accelerator because a tensor was made on the CPU, not what its kernels compute.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy:0")
"""A name that torch knows and loads nothing for; without the number it would ask for the present device of that kind."""
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
"""The only operations between devices."""


class Remote(torch.Tensor):
    """A tensor whose numbers lie in a CPU tensor, `inner`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype, device=DEVICE
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, kinds, arguments=(), options=None):
        return _run(operation, arguments, options or {})

    def tolist(self):
        return self.inner.tolist()

    def data_ptr(self):
        return self.inner.data_ptr()


class Elsewhere(TorchDispatchMode):
    """Inside, tensors can be made on DEVICE."""

    def __torch_dispatch__(self, operation, kinds, arguments=(), options=None):
        return _run(operation, arguments, options or {})


def _run(operation, arguments, options):
    given = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)]
    remote = {id(one.inner): one for one in given if isinstance(one, Remote)}
    local = [one for one in given if not isinstance(one, Remote)]
    # Like real devices, this one takes single numbers from the CPU.
    assert not remote or operation in _COPIES or not any(one.ndim for one in local), f"{operation} of tensors on two devices"
    asked = options.get("device")
    lands = bool(remote) if asked is None else torch.device(asked).type == DEVICE.type
    if asked is not None and lands:
        options = {**options, "device": torch.device("cpu")}
    plain, named = tree_map(lambda leaf: leaf.inner if isinstance(leaf, Remote) else leaf, (arguments, options))

    def placed(leaf):
        if not isinstance(leaf, torch.Tensor) or any(leaf is one for one in local):
            return leaf
        if id(leaf) in remote:
            return remote[id(leaf)]
        return Remote(leaf) if lands else leaf

    return tree_map(placed, operation(*plain, **named))
