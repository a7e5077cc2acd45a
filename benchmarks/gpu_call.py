"""One call of a kernel of a log, for tools that watch a program: `gpu_steps.under` runs it below them.

python benchmarks/gpu_call.py TARGET LOG '{"group": …, "op": …, "params": …, "dtype": …}'
"""

from __future__ import annotations

import argparse
import json
import sys

from gpu_steps import loaded, workload


def main() -> None:
    from autotune.measure import random_inputs

    target, db, row = sys.argv[1:]
    w = workload(json.loads(row))
    loaded(w, argparse.Namespace(target=target, db=db))(*random_inputs(w.dag))


if __name__ == "__main__":
    main()
