"""`python -m heedful` is the command `heedful`."""

from heedful.cli import main

main()
