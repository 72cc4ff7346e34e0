"""`python -m cachehome VERB`."""

from cachehome.entry import console

if __name__ == "__main__":
    console()
