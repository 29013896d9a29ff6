"""Where it runs: threads that go the same way, their blocks and clusters, who goes next, what they
wait for, and the memory that they see."""
