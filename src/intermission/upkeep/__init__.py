"""Upkeep of workspaces: what people start beside the work, and nothing of it runs a task."""
