"""`python -m sdpakit` is the command `sdpakit`."""

from sdpakit.cli import main

if __name__ == "__main__":
    main()
