"""``python -m services.cli``: the command line without its script."""

from services.cli import main

if __name__ == "__main__":
    main()
