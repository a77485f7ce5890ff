"""How a recurrent network lets small changes grow or die: norms, Lyapunov exponents, and the recurrent gain at which they do neither."""
