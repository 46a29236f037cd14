"""`python -m intermission` is the command `intermission`."""

from intermission.cli import main

if __name__ == "__main__":
    main()
