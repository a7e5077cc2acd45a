"""Enumerate small graphs, verify those that are equal, and write the substitutions that are left to a file.

    python -m benchmarks.generate_substitutions --out configs/substitutions.json
    python -m benchmarks.generate_substitutions --most 2 --seed 1 --out small.json
    python -m benchmarks.generate_substitutions --verify configs/substitutions.json
    python -m benchmarks.generate_substitutions --taso graph_subst.pb configs/substitutions.json

The same seed and the same size give the same substitutions. ``--taso`` counts how many rules of that file,
which TASO's authors publish, follow from the substitutions (`benchmarks.taso_rules`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.taso_rules import follow
from schedules.substitutions.document import from_json, to_json
from schedules.substitutions.generation import generate
from schedules.substitutions.verify import verified


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--most", type=int, help="operators of the larger side; default: what each world says"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verify", type=Path, help="verify each substitution of a file again")
    parser.add_argument(
        "--taso", type=Path, nargs=2, help="TASO's file of rules, and a file of substitutions"
    )
    given = parser.parse_args()
    start = time.process_time()

    def tell(line: str) -> None:
        print(f"{time.process_time() - start:7.1f} s  {line}", flush=True)

    if given.out:
        found = generate(given.most, given.seed, tell=tell)
        given.out.write_text(to_json(found, time.process_time() - start), encoding="utf-8")
        for c in found.counts:
            tell(str(c))
        tell(
            f"{len({(s.source, s.target) for s in found.substitutions})} substitutions written to {given.out}"
        )
    if given.verify:
        every = from_json(given.verify.read_text(encoding="utf-8")).substitutions
        for s in every:
            if verified(s, 1).proof != s.proof:
                raise SystemExit(f"{s}: proved otherwise than the file says")
        tell(f"{len(every)} substitutions verified")
    if given.taso:
        rules, known = given.taso
        every = from_json(known.read_text(encoding="utf-8")).substitutions
        for line in follow(rules.read_bytes(), every):
            tell(line)


if __name__ == "__main__":
    main()
