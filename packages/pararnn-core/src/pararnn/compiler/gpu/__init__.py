"""Kernels for a GPU, printed in Triton from programs.

Where is what: `engine` is the entrance, `backend` what the plugin registers; `printer` and `functions` print expressions.

- Forward: `planning` and `launches` choose; `walk`, `shooting` and `across` are the kernels as text, made with `passes`, `parts` and `newton`;
  `forward_subject` names what they share, `forward_source` makes a module of the text, `forward` launches what is `forward_prepared`.
- Backward: `backward_planning` chooses; `backward_walk` and `backward_tile` are the kernels as text; `backward_subject`, `backward_source`,
  `backward_prepared` and `backward` as above; `backward_direct` knows what was arranged before.
- `calls`: a launch that costs the CPU little.
"""
