"""Steps compiled to C by the system's compiler, for the CPU.

Where is what: `engine` is the entrance, `backend` what the plugin registers; `planning` chooses, `layout` cuts the work, `threads` share it.
`printer` prints expressions, `graph` and `stages` say which of them are computed when, `source` puts the loops of `csrc` around them; `toolchain`
compiles and keeps libraries; `calls`, `gradients` and `memory` hand tensors to them.
"""
