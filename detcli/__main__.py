"""`python -m detcli`."""

from detcli.cli.app import main

if __name__ == "__main__":
    main()
