"""Who tells a machine that it is about to be taken away."""
