"""`python -m graphweave` is the command `graphweave`."""

import sys

from graphweave.cli.main import main

sys.exit(main())
