"""A second device for machines that have none: CPU tensors that say they lie elsewhere, and operations that refuse to mix them with others.

It finds what would fail on an accelerator because a tensor was made on the CPU, not what its kernels compute.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy:0")
"""A name that torch knows and loads nothing for; without the number it would ask for the present device of that kind."""
_MOVES = (torch.ops.aten.to, torch.ops.aten._to_copy)
"""Operations that may take a tensor from one device to another, beside copying into place."""


class Remote(torch.Tensor):
    """A tensor whose numbers lie in a CPU tensor, `inner`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        with torch.inference_mode(False):  # views of other tensors share their version counters, which those made in it have not
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
    kind, leaves = operation.overloadpacket, tree_leaves((arguments, options))
    remote = {id(one.inner): one for one in leaves if isinstance(one, Remote)}
    local = [one for one in leaves if isinstance(one, torch.Tensor) and not isinstance(one, Remote)]
    crosses = kind in _MOVES or kind is torch.ops.aten.copy_
    # Like real devices, this one takes single numbers from the CPU.
    assert not remote or crosses or not any(one.ndim for one in local), f"{operation} of tensors on two devices"
    asked = [one for one in leaves if isinstance(one, torch.device)]
    lands = asked[0].type == DEVICE.type if asked else bool(remote)
    if operation is torch.ops.aten.to.other:
        lands = isinstance(arguments[1], Remote)

    def inside(leaf):
        if isinstance(leaf, torch.device):
            return torch.device("cpu") if leaf.type == DEVICE.type else leaf
        return leaf.inner if isinstance(leaf, Remote) else leaf

    def placed(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if kind in _MOVES:
            leaf = leaf.clone()
        elif any(leaf is one for one in local):
            return leaf
        elif id(leaf) in remote:
            return remote[id(leaf)]
        return Remote(leaf) if lands else leaf

    plain, named = tree_map(inside, (arguments, options))
    return tree_map(placed, operation(*plain, **named))
