"""TLS by Dask's settings, with the commands and settings that the page on fleets shows: a run over it, and
refusals of each kind, told in words within seconds."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from children import ROOT, python_path
from cli_runner import run
from fleet_cases import A, FakeSite
from needs import imported, missing

from autotune.fleet import connection, local, reachability, worker
from autotune.fleet.errors import FleetError

distributed = imported("distributed")
dask = imported("dask")
if shutil.which("openssl") is None:
    missing("openssl")

PAGE = (ROOT / "docs/how-to/fleet.md").read_text("utf-8")
SOON_S = 60.0  # within which a refusal is told: whoever tries again does so for ever
HOME = "/home/me/fleet"


def shown(name: str) -> str:
    """A block of the page, by the comment before it."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, name
    return re.sub(r"^\$ ", "", found[1], flags=re.MULTILINE)


def done(script: str, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@dataclass(frozen=True)
class Certificates:
    """``mine``, ``other``: a certificate for all, and one that another fleet made. ``each``: a certificate
    for each machine."""

    mine: Path
    other: Path
    each: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    one = shown("one certificate")
    return Certificates(
        done(one, folder / "mine"), done(one, folder / "other"), done(shown("certificates"), folder / "each")
    )


@contextmanager
def settings(ca: Path | None, cert: Path | None = None, key: Path | None = None) -> Iterator[None]:
    """Dask's settings of TLS in this process."""
    told: dict[str, Any] = {"ca-file": ca and str(ca / "cert.pem")}
    for role in ("scheduler", "worker", "client"):
        told[role] = {
            "cert": cert and str(cert / "cert.pem"),
            "key": (key or cert) and str((key or cert) / "key.pem"),  # type: ignore[operator]
        }
    with dask.config.set({f"distributed.comm.tls.{k}": v for k, v in told.items()}):
        yield


@contextmanager
def scheduler(protocol: str) -> Iterator[str]:
    connection.quiet()
    with distributed.LocalCluster(
        n_workers=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
        processes=False,
        protocol=protocol,
        security=distributed.Security(),
    ) as cluster:
        yield str(cluster.scheduler_address)


@pytest.fixture(scope="module")
def with_tls(made: Certificates) -> Iterator[str]:
    with settings(made.mine, made.mine), scheduler("tls") as address:
        yield address


@pytest.fixture(scope="module")
def without_tls() -> Iterator[str]:
    with scheduler("tcp") as address:
        yield address


def connect(address: str) -> None:
    connection.connect(address).close()


def work(address: str) -> None:
    """Run a worker until it is refused, which must be soon."""
    offer = worker.Offer({"a": A})
    asyncio.run(asyncio.wait_for(worker.run(address, offer, print, site=FakeSite()), SOON_S))


def refusal(do: Callable[[str], None], address: str) -> str:
    began = time.monotonic()
    with pytest.raises(FleetError) as caught:
        do(address)
    assert time.monotonic() - began < SOON_S
    return str(caught.value)


BOTH = pytest.mark.parametrize(("do", "role"), [(connect, "client"), (work, "worker")])


def listening() -> set[Any]:
    """Where this process listens."""
    found = psutil.Process().net_connections("inet")
    return {(c.laddr.ip, c.laddr.port) for c in found if c.status == psutil.CONN_LISTEN}


def test_who_has_the_certificate_is_let_in(made: Certificates, with_tls: str) -> None:
    said: list[str] = []
    before = listening()

    async def until_connected() -> None:
        connected = asyncio.Event()

        def say(text: str) -> None:
            said.append(text)
            connected.set()

        offer = worker.Offer({"a": A})
        task = asyncio.create_task(worker.run(with_tls, offer, say, site=FakeSite()))
        await asyncio.wait_for(connected.wait(), 30)
        with await asyncio.to_thread(connection.connect, with_tls) as client:
            (found,) = await asyncio.to_thread(lambda: client.scheduler_info(n_workers=-1)["workers"])
            said.append(found)
        assert {ip for ip, _ in listening() - before} == {"127.0.0.1"}, "it listens to this machine alone"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with settings(made.mine, made.mine):
        asyncio.run(until_connected())
    assert said[0] == f"connected to {with_tls}, offers a (kind-a, threads: 1)"
    assert said[1].startswith("tls://")


@BOTH
def test_a_certificate_of_another_fleet_is_refused_by_the_scheduler(
    do: Callable[[str], None], role: str, made: Certificates, with_tls: str
) -> None:
    with settings(made.mine, made.other):
        said = refusal(do, with_tls)
    assert f"refuses the certificate of this {role}: it was signed by a CA that the sch" in said
    assert f"{made.other / 'cert.pem'}, Dask's setting distributed.comm.tls.{role}.cert, must" in said


# Signed by the fleet's CA, and valid at another time: as if a machine's clock were wrong.
TIMED = """
cat > ca.cnf <<END
[ca]
default_ca = d
[d]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = p
[p]
commonName = supplied
END
touch index; echo 01 > serial
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=late -keyout key.pem -out csr.pem
openssl ca -config ca.cnf -batch -notext -in csr.pem -cert {each}/ca.pem -keyfile {each}/ca.key \
  -startdate {begin}0101000000Z -enddate {end}0101000000Z -out cert.pem
"""


@pytest.mark.parametrize(
    ("begin", "end", "here", "there"),
    [
        (2001, 2002, "certificate has expired", "it has expired"),
        (2098, 2099, "certificate is not yet valid", "it is broken, or not valid yet"),
    ],
)
def test_a_certificate_of_another_time_points_to_the_clocks(
    begin: int, end: int, here: str, there: str, made: Certificates, tmp_path: Path
) -> None:
    late = done(TIMED.format(each=made.each, begin=begin, end=end), tmp_path / "late")
    bad, good = (late / "cert.pem", late / "key.pem"), (made.each / "laptop.pem", made.each / "laptop.key")
    clocks = r".*compare the clocks of both machines \(here it is 20.* UTC\), or make a new certificate"
    ca = made.each / "ca.pem"
    for server, client, words in ((good, bad, there), (bad, good, here)):
        told = {"ca-file": str(ca), "client": dict(zip(("cert", "key"), map(str, client), strict=True))}
        with (
            dask.config.set({f"distributed.comm.tls.{k}": v for k, v in told.items()}),
            speaking_tls(ca, *server) as address,
        ):
            assert re.search(re.escape(words) + clocks, refusal(connect, address))


@contextmanager
def speaking_tls(ca: Path, cert: Path, key: Path) -> Iterator[str]:
    """A server that shows a certificate, and asks for one of the same CA, as a scheduler does."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with suppress(OSError), context.wrap_socket(plain, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"tls://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@BOTH
def test_a_scheduler_of_another_fleet_is_refused(
    do: Callable[[str], None], role: str, made: Certificates, with_tls: str
) -> None:
    with settings(made.other, made.other):
        said = refusal(do, with_tls)
    assert "shows a certificate that is not trusted here (self-signed certificate)" in said
    assert f"the CA of {made.other / 'cert.pem'}, Dask's setting distributed.comm.tls.ca-file" in said


@BOTH
def test_who_asks_for_no_tls_is_refused(do: Callable[[str], None], role: str, with_tls: str) -> None:
    said = refusal(do, with_tls.replace("tls://", "tcp://"))
    assert "has TLS, and this address asks for none; use " + with_tls in said


@BOTH
def test_a_scheduler_without_tls_is_refused(
    do: Callable[[str], None], role: str, made: Certificates, without_tls: str
) -> None:
    with settings(made.mine, made.mine):
        said = refusal(do, without_tls.replace("tcp://", "tls://"))
    assert "has no TLS ([SSL: WRONG_VERSION_NUMBER] wrong version number)" in said
    assert f"dask scheduler --protocol tls), or use {without_tls} in a network that you trust" in said


@pytest.mark.parametrize("plain", [False, True])
def test_the_scheduler_itself_keeps_others_out(
    plain: bool, made: Certificates, with_tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only our own question before: it could be left out."""
    monkeypatch.setattr(reachability, "reach", lambda *_, **__: "127.0.0.1")
    monkeypatch.setattr(worker, "LET_IN_S", 2.0)
    address = with_tls.replace("tls://", "tcp://") if plain else with_tls
    with settings(made.mine, made.other):
        assert f"{address} cannot be connected to" in refusal(connect, address)
        offer = worker.Offer({"a": A})
        with pytest.raises(FleetError, match="no scheduler answers at"):
            asyncio.run(worker.run(address, offer, print, site=FakeSite(), once=True))
    with settings(made.mine, made.mine), connection.connect(with_tls) as client:
        assert not client.scheduler_info(n_workers=-1)["workers"]


@BOTH
def test_missing_settings_are_named(do: Callable[[str], None], role: str, with_tls: str) -> None:
    with settings(None):
        said = refusal(do, with_tls)
    assert "needs certificates, and Dask's settings have no distributed.comm.tls.ca-file (DASK_" in said
    assert f"distributed.comm.tls.{role}.cert (DASK_DISTRIBUTED__COMM__TLS__{role.upper()}__CERT)" in said


def test_files_that_are_missing_or_wrong_are_named(made: Certificates, with_tls: str, tmp_path: Path) -> None:
    with settings(made.mine, tmp_path):
        said = refusal(connect, with_tls)
    assert (
        f"{tmp_path / 'cert.pem'}, which Dask's setting distributed.comm.tls.client.cert names, can" in said
    )
    with settings(made.mine, made.mine, key=made.other):
        said = refusal(connect, with_tls)
    assert "KEY_VALUES_MISMATCH" in said and "client.key must be the key of client.cert" in said
    (tmp_path / "cert.pem").write_text("no certificate", encoding="utf-8")
    with settings(tmp_path, made.mine):
        assert "cannot be used" in refusal(connect, with_tls)


def test_encryption_that_the_settings_ask_for_is_kept(without_tls: str) -> None:
    with dask.config.set({"distributed.comm.require-encryption": True}):
        for do in (connect, work):
            said = refusal(do, without_tls)
            assert "distributed.comm.require-encryption asks for it; use tls://127" in said
        with pytest.raises(FleetError, match=r"local:N has no TLS, and Dask's setting .* asks for it"):
            with local.reached("local:1"):
                pass
    with dask.config.set({"distributed.comm.tls.min-version": 1.0}):
        assert "Dask's settings of TLS cannot be used" in refusal(connect, without_tls)


@contextmanager
def answering(answer: bytes | None, host: str = "127.0.0.1") -> Iterator[str]:
    """A server that says so to whoever connects, and no more. None: it ends the connection."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"{host} is not usable here")
    with closing(server), ExitStack() as stack:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                if answer is None:
                    sock.close()
                else:
                    sock.sendall(answer)
                    stack.enter_context(closing(sock))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://{f'[{host}]' if ':' in host else host}:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.slow
def test_other_servers_are_no_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "SPEAKS_S", 0.1)
    security = connection.security()
    with answering(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        with pytest.raises(FleetError, match=r"is no scheduler of Dask; its port is usually 8786"):
            reachability.try_once(address, security, "client")
    with answering(b"") as address:
        with pytest.raises(TimeoutError, match=r"says nothing; is it the scheduler's port"):
            reachability.try_once(address, security, "client", 0.3)
    with answering(None) as address, pytest.raises(FleetError) as caught:
        reachability.reach(address, security, "client", 0.3)
    assert "no scheduler answers at tcp://127" in str(caught.value)
    assert "(it ended the connection)" in str(caught.value) and "dask scheduler" in str(caught.value)


def test_a_connection_tells_by_which_address_of_this_machine() -> None:
    hello = (100).to_bytes(8, "little")
    with answering(hello) as address:
        assert reachability.try_once(address, connection.security(), "worker") == "127.0.0.1"
    with answering(hello, "::1") as address:
        assert reachability.try_once(address, connection.security(), "worker") == "[::1]"


def test_nobody_there_is_told_with_the_reason(made: Certificates) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    for scheme in ("tcp", "tls"):
        with settings(made.mine, made.mine), pytest.raises(FleetError, match=r"\(Connection refused\)"):
            connection.connect(f"{scheme}://127.0.0.1:{port}", 0.3)


@pytest.mark.slow
def test_a_worker_waits_for_a_scheduler_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    offer = worker.Offer({"a": A})
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(worker.run(address, offer, print, site=FakeSite()), 1.0))
    assert (
        capsys.readouterr().out
        == f"no scheduler answers at {address} yet (Connection refused); waiting for it\n"
    )


@pytest.mark.parametrize(
    ("command", "host", "told"),
    [
        (("fleet",), "192.0.2.1", True),
        (("fleet",), "127.0.0.1", False),
        (("tune", "add", "--shape", "n=64", "--fleet"), "192.0.2.1", True),
        (("tune", "add", "--shape", "n=64", "--fleet"), "localhost", False),
        (("worker", "--target", "cpu"), "192.0.2.1", True),
    ],
)
def test_an_address_without_tls_is_told_of_unless_it_is_of_this_machine(
    command: tuple[str, ...], host: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FleetError("nobody is there")

    monkeypatch.setattr(reachability, "reach", refuse)
    monkeypatch.setattr(reachability, "try_once", refuse)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    for scheme in ("tcp", "tls"):
        ran = run(*command, f"{scheme}://{host}:8786")
        assert ran.status == 2 and "autotune: nobody is there" in ran.err
        assert ("has no TLS: whoever reaches it can" in ran.err) == (told and scheme == "tcp")


# -- processes ------------------------------------------------------------------------------------------


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[str]] = []

    def start(self, environment: dict[str, str], *command: str) -> subprocess.Popen[str]:
        told = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
        told |= {"PYTHONPATH": python_path(__file__), "TMPDIR": str(self.folder), **environment}
        told |= {"AUTOTUNE_CACHE_DIR": str(self.folder / "cache"), "AUTOTUNE_DB": str(self.folder / "log.db")}
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=told,
            cwd=self.folder,
        )
        self.all.append(process)
        return process


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    try:
        yield made
    finally:
        for process in reversed(made.all):
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def in_file(folder: Path, name: str, certificates: Path) -> dict[str, str]:
    """The page's file of settings, with a machine's certificate."""
    text = shown("settings").replace(f"{HOME}/cert.pem", str(certificates / f"{name}.pem"))
    text = text.replace(f"ca-file: {certificates / name}.pem", f"ca-file: {certificates / 'ca.pem'}")
    text = text.replace(f"{HOME}/key.pem", str(certificates / f"{name}.key"))
    assert HOME not in text
    place = folder / name
    place.mkdir()
    (place / "tls.yaml").write_text(text, encoding="utf-8")
    return {"DASK_CONFIG": str(place)}


def in_variables(name: str, certificates: Path) -> dict[str, str]:
    """The page's variables."""
    pairs = dict(re.findall(r"export (\w+)=(.*)", shown("variables")))
    assert len(pairs) == 3
    files = {"CA_FILE": "ca.pem", "CERT": f"{name}.pem", "KEY": f"{name}.key"}
    return {k: str(certificates / next(f for end, f in files.items() if k.endswith(end))) for k in pairs}


@pytest.mark.soak
def test_a_run_over_tls_with_a_certificate_for_each_machine(
    processes: Processes, made: Certificates, tmp_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
    where = f"tls://127.0.0.1:{port}"
    processes.start(
        in_file(tmp_path, "scheduler", made.each),
        *("distributed.cli.dask_scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", port),
        *("--no-dashboard", "--dashboard-address", "127.0.0.1:0"),
    )
    there = in_file(tmp_path, "rack-7", made.each)
    processes.start(
        there, *("autotune", "worker", where, "--target", "cpu", "--threads", "1", "--name", "rack-7")
    )
    here = in_variables("laptop", made.each)
    client = processes.start(
        here,
        *("autotune", "tune", "add", "--shape", "n=4096", "--fleet", where),
        *("--trials", "2", "--budget", "60s", "--json"),
    )
    out, err = client.communicate(timeout=90)
    assert client.returncode == 0, err
    assert json.loads(out)["best"]["time_s"] > 0 and "no TLS" not in err
    plain = processes.start({}, "autotune", "fleet", where.replace("tls:", "tcp:"))
    listed = processes.start(here, "autotune", "fleet", where, "--json")
    out, err = listed.communicate(timeout=30)
    (found,) = json.loads(out)["workers"]
    assert found["machine"]["name"] == "rack-7" and found["address"].startswith("tls://")
    out, err = plain.communicate(timeout=30)
    assert plain.returncode == 2 and "has TLS, and this address asks for none" in err
