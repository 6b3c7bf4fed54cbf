"""``python -m services.cli``: the command line without the installed script."""

from services.cli.app import main

if __name__ == "__main__":
    main()
