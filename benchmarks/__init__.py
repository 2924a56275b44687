"""Measurements: each module prints a table, appends a record to results/ and draws a picture."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's; read when it is first imported
