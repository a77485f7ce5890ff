"""Which modules and tensors a module holds, to notice that one was replaced by another: what was recorded still reads the old one."""

from __future__ import annotations

from torch import nn


class ModuleTensors:
    """The parameters, buffers and inner modules of `module` at the time this was made. Edits in place are no replacement."""

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.named_modules(remove_duplicate=True))
        self._parts = [(name, part._modules, dict(part._modules)) for name, part in modules]
        self._places = [
            (f"{name}.{own}".lstrip("."), store, own, tensor, 0 if tensor is None else tensor.data_ptr())
            for name, part in modules
            for store in (part._parameters, part._buffers)
            for own, tensor in store.items()
        ]

    def replaced(self) -> str:
        """The name of a tensor or an inner module that is another one now, or lies elsewhere in memory; empty where all are the same."""
        # The dictionaries of the modules are read themselves: going through attributes would cost more than a decoding step.
        for name, store, own, tensor, address in self._places:
            if store.get(own) is not tensor or (tensor is not None and tensor.data_ptr() != address):
                return name
        return self.replaced_module()

    def replaced_module(self) -> str:
        """The same of inner modules only."""
        for name, modules, before in self._parts:
            if modules != before:
                own = next((own for own in before | modules if modules.get(own) is not before.get(own)), "")
                return f"{name}.{own}".strip(".")
        return ""
