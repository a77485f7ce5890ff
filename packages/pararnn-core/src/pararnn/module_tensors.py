"""Which tensors a module holds, to notice that one was replaced by another: what was recorded still reads the old one."""

from __future__ import annotations

from torch import nn


class ModuleTensors:
    """The parameters and buffers of `module` at the time this was made. Edits in place are no replacement."""

    def __init__(self, module: nn.Module) -> None:
        self._places = [
            (f"{name}.{own}".lstrip("."), store, own, tensor, 0 if tensor is None else tensor.data_ptr())
            for name, part in module.named_modules(remove_duplicate=True)
            for store in (part._parameters, part._buffers)
            for own, tensor in store.items()
        ]

    def replaced(self) -> str:
        """The name of the first tensor that is another one now, or lies elsewhere in memory; empty where all are the same."""
        for name, store, own, tensor, address in self._places:
            # The dictionaries of the modules are read themselves: going through attributes would cost more than a decoding step.
            if store.get(own) is not tensor or (tensor is not None and tensor.data_ptr() != address):
                return name
        return ""
