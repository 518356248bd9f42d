"""`python -m npad` is `npad`; torchrun wants it so."""

from npad.cli.main import main

main()
