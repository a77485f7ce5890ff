"""How near a rule's signals and gradients are to the exact ones, at frozen weights or over a training."""
