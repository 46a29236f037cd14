"""The engine: plans, claims, runs, commits and recovers tasks. It knows no backend by name."""
