"""`python -m bayescaffe` is the same as the command `bayescaffe`."""

import sys

from bayescaffe.cli import main

sys.exit(main())
