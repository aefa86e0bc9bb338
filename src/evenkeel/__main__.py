"""`python -m evenkeel` is `evenkeel`."""

import sys

from evenkeel.cli.main import main

sys.exit(main())
