"""What people and servers do to workspaces beside the work: gc, rebuild, verify."""
