"""Each module is a command: `python -m benchmarks.layer`."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's; read when it is first imported
