"""The pipelines that ship: what users run by name. Each is made with the public API alone."""
