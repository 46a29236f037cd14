"""The systems compared with: each module offers `SETTINGS` and `run(count, folder) -> seconds`."""
