"""What the engine needs from the outside, as Protocols. Implementations are in `backends/`."""
