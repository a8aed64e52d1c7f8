"""`python -m detcli`."""

from detcli.app import main

if __name__ == "__main__":
    main()
