"""`python -m outrider` is the `outrider` command."""

from outrider.cli.main import main

main()
