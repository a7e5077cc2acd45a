"""``--fleet``, ``worker`` and ``fleet``: what they refuse before anything is reached."""

from __future__ import annotations

import pytest
from cli_runner import run
from needs import imported

SHAPE = ("--shape", "m=64,n=64,k=64")
ADDRESS = "no address of a scheduler; give one such as tcp://host:8786 or tls://host:8786"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "net.onnx", "--fleet", "local:1", "--frozen"), "--frozen does not go with a model"),
        (("tune", "matmul", "--shape", "m=1..9,n=4,k=4", "--frozen"), "--frozen takes one size"),
        (("tune", "matmul", *SHAPE, "--fleet", "local:1", "--frozen"), "--frozen measures nothing"),
        (("tune", "matmul", *SHAPE, "--build-here"), "--build-here goes with --fleet"),
        (("tune", "matmul", *SHAPE, "--target", "cpu,x86-64-v3"), "several targets are tuned for on a fleet"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], said: str) -> None:
    ran = run(*words)
    assert ran.status == 2 and said in ran.err


def test_addresses_that_are_none() -> None:
    imported("distributed")
    for command in (("worker",), ("fleet",), ("tune", "matmul", *SHAPE, "--fleet")):
        for address in (
            "host:8786",
            "tcp://host",
            "tcp://host:0",
            "tcp://host:70000",
            "tcp://a b:1",
            "local:x",
        ):
            ran = run(*command, address)
            assert ran.status == 2 and f"{address!r} is {ADDRESS}" in ran.err, ran.err
    for name in ("worker", "fleet"):
        ran = run(name, "local:2")
        assert ran.status == 2 and "local:2 is a fleet that tune and log verify start and end" in ran.err
    ran = run("tune", "matmul", *SHAPE, "--fleet", "local:0")
    assert ran.status == 2 and "fleet 'local:0' has no workers; give local:1 or more" in ran.err
