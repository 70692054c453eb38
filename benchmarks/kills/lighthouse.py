"""Torchft's lighthouse, as its command `torchft_lighthouse` runs it, wherever torchft is installed."""

import sys

from torchft._torchft import lighthouse_main

sys.exit(lighthouse_main())
