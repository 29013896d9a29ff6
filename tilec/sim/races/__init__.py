"""Who touched which memory when, what orders that, and what is still in flight."""
