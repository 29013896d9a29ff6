"""What matrix instructions and the asynchronous engines do: cp.async, TMA and wgmma."""
