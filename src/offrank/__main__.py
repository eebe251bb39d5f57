import sys

from offrank.cli import main

sys.exit(main())
