"""`python -m cachehome VERB`."""

from cachehome.cli import console

if __name__ == "__main__":
    console()
